"""Data sets by name: the user's folders, downloads (mocked here), and errors."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from nrprob import datasets
from nrprob.batch import tables
from nrprob.datasets import load, loaders
from nrprob.exceptions import DataUnavailable, InputError

LABELS = pd.DataFrame({"kind": ["a", "b", "a", ""], "number": [1, 2, 2, 1]})


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """Only the data of a test, without a network."""

    def refuse(*args, **kwargs):
        raise OSError("no network in tests")

    for name in ("NRPROB_DATA", "NRPROB_WEBKB", "NRPROB_WEBKB_SHA256"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Three tiny folders, one per format."""
    monkeypatch.setenv("NRPROB_DATA", str(tmp_path))
    for name in ("plants", "notes", "faces", "wine"):
        (tmp_path / name).mkdir()
        LABELS.to_csv(tmp_path / name / "labels.csv.gz", index=False)
    table = pd.DataFrame({"length": [1, 2, 3, 4], "width": [0.5, 1.5, 2.5, 3.5]})
    for name in ("plants", "wine"):
        table.to_csv(tmp_path / name / "data.csv.gz", index=False)
    counts = scipy.sparse.csr_array(np.array([[1, 0, 2], [3, 0, 0], [1, 1, 0], [0, 0, 5]]))
    scipy.sparse.save_npz(tmp_path / "notes" / "counts.npz", counts)
    with gzip.open(tmp_path / "notes" / "vocabulary.txt.gz", "wt", encoding="utf-8") as file:
        file.write("<num>\nnull\nzeta\n")
    images = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)
    np.savez(tmp_path / "faces" / "images.npz", images=images)
    return tmp_path


# scikit-learn's own


def test_sets_that_ship_with_scikit_learn():
    digits = load("digits")
    assert digits.X.shape == (1797, 64) and digits.image_shape == (8, 8)
    assert digits.labelings["digit"].dtype.kind == "i"
    assert set(load("wine").labelings["cultivar"]) == {"class_0", "class_1", "class_2"}
    assert load("breast_cancer").feature_names[0] == "mean radius"


def test_repr_without_arrays(root):
    assert repr(load("wine")) == (
        "<DataSet wine: X of shape (178, 13); labelings: cultivar (3 groups)>"
    )
    notes = load("notes", min_df=2)
    labelings = "kind (3 groups), number (2 groups)"
    assert repr(notes) == f"<DataSet notes: X of shape (4, 2); labelings: {labelings}>"
    faces = load("faces")
    faces.labelings = {"all": np.zeros(4)}
    assert repr(faces) == (
        "<DataSet faces: X of shape (4, 6) (images of 3 x 2); labelings: all (1 group)>"
    )
    assert repr(datasets.DataSet(np.ones((3, 2)))) == "<DataSet: X of shape (3, 2)>"


def test_their_names_win_over_folders(root):
    assert load("wine").X.shape == (178, 13)


def test_names_load_on_first_use():
    code = (
        "import sys; import nrprob.datasets as d; assert 'nrprob.datasets.loaders' not in "
        "sys.modules; assert {'load', 'DataSet'} <= set(dir(d)); d.load; "
        "assert 'sklearn' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        datasets.laod  # noqa: B018


# folders


def test_columns(root):
    plants = load("plants")
    np.testing.assert_array_equal(plants.X, [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]])
    assert plants.feature_names == ["length", "width"]
    assert plants.image_shape is None
    assert plants.labelings["kind"].tolist() == ["a", "b", "a", ""]
    assert plants.labelings["number"].dtype.kind == "i"


def test_counts_and_min_df(root):
    notes = load("notes")
    assert isinstance(notes.X, scipy.sparse.csr_array) and notes.X.dtype == np.int64
    assert notes.feature_names == ["<num>", "null", "zeta"]
    assert notes.X.toarray().tolist() == [[1, 0, 2], [3, 0, 0], [1, 1, 0], [0, 0, 5]]
    often = load("notes", min_df=2)
    assert often.feature_names == ["<num>", "zeta"]
    assert often.X.toarray().tolist() == [[1, 2], [3, 0], [1, 0], [0, 5]]


def test_images(root):
    faces = load("faces")
    assert faces.X.shape == (4, 6) and faces.X.dtype == float and faces.image_shape == (3, 2)
    np.testing.assert_array_equal(faces.X[1], np.arange(6, 12))


def test_tables_load_by_the_same_names(root):
    table = tables.load_set("notes", {"min_df": 2})
    assert table.feature_names == ["<num>", "zeta"] and list(table.labelings) == ["kind", "number"]
    assert tables.load_set("iris").X.shape == (150, 4)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("plants", {"min_df": 2}, "no such parameter; min_df for 'plants'; it takes none"),
        ("wine", {"scale": 1, "min_df": 2}, "scale, min_df for 'wine'; it takes none"),
        ("notes", {"mindf": 2}, "mindf for 'notes'; it takes min_df"),
        ("notes", {"name": 2}, "name for 'notes'; it takes min_df"),
        ("notes", {"min_df": 0}, "min_df must be a number of rows; got 0"),
        ("notes", {"min_df": 0.5}, "min_df must be a number of rows; got 0.5"),
        ("notes", {"min_df": True}, "min_df must be a number of rows; got True"),
        ("newsgroups20", {"subset": "all"}, "subset for 'newsgroups20'; it takes min_df"),
    ],
)
def test_parameters_that_do_not_fit(root, name, parameters, message):
    with pytest.raises(InputError, match=message):
        tables.load_set(name, parameters)


def test_names_that_there_are_not(root, monkeypatch):
    with pytest.raises(InputError, match=r"unknown data set; 'wnie'; did you mean 'wine'\?") as e:
        load("wnie")
    assert not isinstance(e.value, DataUnavailable)
    with pytest.raises(DataUnavailable, match=r"has no such folder; did you mean 'plants'\?"):
        load("plant")
    # It is not a misspelling: the model file that names it is skipped, with this reason.
    with pytest.raises(DataUnavailable, match="NRPROB_DATA = .* has no such folder; set NRPROB"):
        load("pendigits")
    with pytest.raises(DataUnavailable):
        load("../" + root.name + "/plants")
    monkeypatch.setenv("NRPROB_DATA", str(root / "none"))
    with pytest.raises(DataUnavailable, match="none is not a directory"):
        load("plants")
    monkeypatch.delenv("NRPROB_DATA")
    with pytest.raises(DataUnavailable, match="NRPROB_DATA is not set"):
        load("plants")


def cut(path):
    path.write_bytes(path.read_bytes()[:-12])


def rewrite(text):
    return lambda path: path.write_bytes(gzip.compress(text.encode()))


def store(**arrays):
    return lambda path: np.savez(path, **arrays)


def store_counts(values):
    return lambda path: scipy.sparse.save_npz(path, scipy.sparse.csr_array(np.array(values)))


@pytest.mark.parametrize(
    ("name", "file", "damage", "message"),
    [
        (
            "plants",
            "data.csv.gz",
            cut,
            "cannot read a file of the data set; .*data.csv.gz: .*; get",
        ),
        ("plants", "data.csv.gz", rewrite(""), "cannot read a file .*data.csv.gz"),
        ("plants", "data.csv.gz", lambda p: p.write_text("a,b\n1,2\n"), "cannot read a file"),
        ("plants", "data.csv.gz", lambda p: p.unlink(), "is missing; .*data.csv.gz; restore it"),
        (
            "plants",
            "data.csv.gz",
            rewrite("a,b\n1,2\n3,\n4,5\n6,7\n"),
            "missing or infinite; 1 of 8",
        ),
        ("plants", "data.csv.gz", rewrite("a,b\n1,x\n2,y\n"), "must be numeric; b in "),
        ("plants", "data.csv.gz", rewrite("a,\n1,2\n3,4\n"), "lacks a name for column 1"),
        ("plants", "data.csv.gz", rewrite("a,b\n"), "lacks rows"),
        ("plants", "data.csv.gz", rewrite("a\n1\n2\n3\n"), "3 rows and 4 labels"),
        ("plants", "labels.csv.gz", cut, "cannot read a file of the data set; .*labels.csv.gz"),
        ("plants", "labels.csv.gz", rewrite("kind\na\nNaN\n"), "labels are missing; column 'kind'"),
        ("plants", "labels.csv.gz", rewrite(",kind\na,b\n"), "lacks a name for column 0"),
        ("notes", "vocabulary.txt.gz", cut, "cannot read a file .*vocabulary"),
        ("notes", "vocabulary.txt.gz", rewrite("a\nb\n"), "3 columns and 2 terms"),
        ("notes", "vocabulary.txt.gz", lambda p: p.unlink(), "is missing; .*vocabulary"),
        ("notes", "counts.npz", cut, "cannot read a file .*counts.npz"),
        ("notes", "counts.npz", store(X=np.eye(4)), "cannot read a file .*counts.npz"),
        (
            "notes",
            "counts.npz",
            store_counts(np.eye(4, 3) / 2),
            "counts must be non-negative integers",
        ),
        (
            "notes",
            "counts.npz",
            store_counts(-np.eye(4, 3)),
            "counts must be non-negative integers",
        ),
        ("notes", "counts.npz", store_counts(np.full((4, 3), np.nan)), "missing or infinite; 12"),
        ("faces", "images.npz", cut, "cannot read a file .*images.npz"),
        ("faces", "images.npz", store(pictures=np.ones((4, 3, 2))), "cannot read a file .*images"),
        ("faces", "images.npz", store(images=np.ones((4, 6))), r"shape \(4, 6\)"),
        ("faces", "images.npz", store(images=np.full((4, 3, 2), b"a")), r"type \|S1"),
        ("faces", "images.npz", lambda p: p.write_bytes(b""), "it is no NPZ archive; get it again"),
        ("faces", "images.npz", store(images=np.full((4, 3), None)), "holds Python objects"),
    ],
)
def test_damaged_files(root, name, file, damage, message):
    damage(root / name / file)
    with pytest.raises(InputError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


# text


def test_words_of_a_page():
    page = (
        "MIME-Version: 1.0\nServer: Apache/1.2\nContent-Type: text/html\n\n"
        "<HTML><HEAD><TITLE>CSE 143</TITLE>\n<script language='x'>var hidden = 1;</SCRIPT></HEAD>"
        "<!-- a comment\n<b>over lines</b> --><body>Autumn 1996, 10:30-11:20<br>caf&eacute; "
        "&amp; R&D by the teacher</body></HTML>"
    )
    assert loaders.page_words(page) == [
        "cse", "<num>", "autumn", "<num>", "<num>", "caf", "teacher",
    ]  # fmt: skip
    # No header: nothing may be lost. Only a header: nothing is left.
    assert loaders.page_words("<p>Reading: papers\n\nEnd</p>") == ["reading", "papers", "end"]
    assert loaders.page_words("Date: Monday\nServer: Apache\n\n") == []
    served = "Date: Monday\r\nServer: Apache\r\n\r\n<p>Page\r\n\r\nwritten"
    assert loaders.page_words(served) == ["page", "written"]
    assert loaders.page_words("") == []


def test_words_of_an_article():
    article = (
        "From: someone@somewhere.edu (Some One)\nSubject: Re: Brakes squeal\nLines: 9\n\n"
        "In article <1993@host> other@place.com writes:\n> quoted brakes\n| quoted too\n"
        "XY> initials\n\nMy pads wore out after 30,000 miles; mail me@home.org\n"
        "--\nSome One, Somewhere\nsignature lines\n"
    )
    assert loaders.article_words(article) == [
        "brakes", "squeal", "pads", "wore", "<num>", "miles", "mail",
    ]  # fmt: skip
    assert loaders.article_words("Subject: brakes\n") == ["brakes"]


def test_counts_of_words():
    X, words = loaders.word_counts([["b", "a", "b"], ["b", "c"], ["a"], []])
    assert words == ["a", "b"]
    assert isinstance(X, scipy.sparse.csr_array) and X.dtype == np.int64
    assert X.toarray().tolist() == [[1, 2], [0, 1], [1, 0], [0, 0]]
    assert loaders.word_counts([["a"], ["b"]])[0].shape == (2, 0)
    assert loaders.word_counts([["a"], ["b"]], min_df=1)[1] == ["a", "b"]


# downloads


def test_selected_articles():
    body = "Subject: engine oil\n\nengine oil filter pump number{}\n"
    articles = [body.format(" x" * i) for i in range(200)] + ["Subject: short\n\noil\n"]
    groups = ["rec.autos"] * 200 + ["sci.space"]
    twice = "Subject: engine\n\nengine oil filter pump spread over groups\n"
    articles += [twice, twice, "Subject: god\n\nengine oil filter pump faith\n"]
    groups += ["rec.autos", "sci.med", "talk.religion.misc"]
    data = loaders._select_articles(articles, np.array(groups))
    assert data.labelings["group"].tolist() == ["rec.autos"] * 150 + ["talk.religion.misc"]
    assert data.labelings["area"].tolist() == ["rec"] * 150 + ["religion"]
    assert data.X.shape == (151, len(data.feature_names))
    assert {"engine", "filter", "oil", "pump"} <= set(data.feature_names)
    assert "spread" not in data.feature_names and "faith" not in data.feature_names
    again = loaders._select_articles(articles, np.array(groups))
    assert (again.X != data.X).nnz == 0


def test_areas_of_all_groups():
    def area(group):
        return next(a for prefix, a in loaders.AREAS.items() if group.startswith(prefix))

    assert area("comp.sys.mac.hardware") == "comp" and area("misc.forsale") == "forsale"
    assert area("alt.atheism") == area("soc.religion.christian") == "religion"
    assert area("talk.politics.guns") == "politics" and area("talk.religion.misc") == "religion"


def test_newsgroups_without_a_network(tmp_path, monkeypatch):
    def refuse(**keywords):
        raise OSError("unreachable")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", refuse)
    with pytest.raises(DataUnavailable, match=r"newsgroups20 could not be downloaded \(unreach"):
        load("newsgroups20")


def archive(path, pages):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in pages.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode("latin-1"))
            tar.addfile(member, io.BytesIO(text.encode("latin-1")))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def pages(tmp_path, monkeypatch):
    path = tmp_path / "webkb.tgz"
    sha256 = archive(
        path,
        {
            "webkb/student/texas/http:^^b^": "Date: x\n\n<p>compiler homepage",
            "webkb/course/cornell/http:^^a^": "Date: x\n\n<p>compiler syllabus caf\xe9",
            "webkb/other/cornell/http:^^c^": "compiler homepage",
            "webkb/course/misc/http:^^d^": "compiler homepage",
            "README": "compiler",
        },
    )
    monkeypatch.setenv("NRPROB_WEBKB", str(path))
    monkeypatch.setenv("NRPROB_WEBKB_SHA256", sha256)
    return path


def test_webkb_from_an_archive(pages):
    data = load("webkb")
    assert data.labelings["page_type"].tolist() == ["course", "student"]
    assert data.labelings["university"].tolist() == ["cornell", "texas"]
    assert data.feature_names == ["compiler"] and data.X.toarray().tolist() == [[1], [1]]
    assert load("webkb", min_df=3).X.shape == (2, 0)


def test_webkb_is_read_only_if_vouched_for(pages, monkeypatch):
    monkeypatch.setenv("NRPROB_WEBKB_SHA256", "0" * 64)
    with pytest.raises(InputError, match="does not match NRPROB_WEBKB_SHA256; .* has SHA-256"):
        load("webkb")
    monkeypatch.delenv("NRPROB_WEBKB_SHA256")
    with pytest.raises(DataUnavailable, match="NRPROB_WEBKB_SHA256 is not set; put a folder"):
        load("webkb")


def test_damaged_archives(pages, monkeypatch):
    def vouch():
        sha256 = hashlib.sha256(pages.read_bytes()).hexdigest()
        monkeypatch.setenv("NRPROB_WEBKB_SHA256", sha256)

    pages.write_bytes(pages.read_bytes()[: pages.stat().st_size // 2])
    vouch()
    with pytest.raises(InputError, match="cannot read a file of the data set"):
        load("webkb")
    pages.write_text("not an archive")
    vouch()
    with pytest.raises(InputError, match="cannot read a file of the data set"):
        load("webkb")
    archive(pages, {"else/a": "text"})
    vouch()
    with pytest.raises(InputError, match="the archive has no pages"):
        load("webkb")
    pages.unlink()
    with pytest.raises(InputError, match="is missing"):
        load("webkb")


def test_webkb_by_download(pages, monkeypatch):
    pooch = pytest.importorskip("pooch")
    asked = []

    def retrieve(url, known_hash, **keywords):
        asked.append((url, known_hash))
        return str(pages)

    sha256 = hashlib.sha256(pages.read_bytes()).hexdigest()
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.delenv("NRPROB_WEBKB")
    assert load("webkb").X.shape == (2, 1)
    monkeypatch.setenv("NRPROB_WEBKB", "https://mirror.example/webkb.tgz")
    load("webkb")
    assert asked == [
        (loaders.WEBKB_URL, f"sha256:{sha256}"),
        ("https://mirror.example/webkb.tgz", f"sha256:{sha256}"),
    ]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError("down"), DataUnavailable, r"could not be downloaded \(OSError\); .* NRPROB_WEBKB"),
        (ValueError("SHA256 hash differs"), InputError, "not the file of NRPROB_WEBKB_SHA256"),
    ],
)
def test_downloads_that_fail(pages, monkeypatch, error, kind, message):
    pooch = pytest.importorskip("pooch")

    def retrieve(*args, **keywords):
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.delenv("NRPROB_WEBKB")
    with pytest.raises(kind, match=message):
        load("webkb")


def test_downloads_without_pooch(pages, monkeypatch):
    monkeypatch.delenv("NRPROB_WEBKB")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailable, match=r"pip install 'nrprob\[data\]'"):
        load("webkb")


# the real folders


def test_real_data(data_dir, monkeypatch):
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    names = [folder.name for folder in loaders._data_set_folders()]
    if "webkb" not in names or "cmu_faces_32x30" not in names:
        pytest.skip(f"no webkb or no cmu_faces_32x30 in {data_dir}")
    for name in names:
        data = load(name)
        n = data.X.shape[0]
        assert all(len(labels) == n for labels in data.labelings.values()), name
        assert data.feature_names is None or len(data.feature_names) == data.X.shape[1], name
        for label, values in data.labelings.items():
            tables.as_labels(values, label)
    webkb = load("webkb", min_df=3)
    assert webkb.X.shape == (1087, 5695)
    assert [len(set(v)) for v in webkb.labelings.values()] == [5, 4]
    assert load("cmu_faces_32x30").image_shape == (30, 32)
