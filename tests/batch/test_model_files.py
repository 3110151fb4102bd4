"""Model files and their tables."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from places import MODELS

from nrprob import CCIB
from nrprob.batch import tables
from nrprob.batch.inputs import known_array, load_data
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.splits import sample_labels
from nrprob.exceptions import InputError

SMALL = """
known = "partition_0"
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 60, dims = [6, 4] }
seed = 3
[[methods]]
name = "ccib"
n_clusters = 2
n_init = 2
random_state = 0
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="model.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


# model files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("knwon = 'a'\n" + SMALL, r"model\.toml: unknown key; knwon; did you mean 'known'\?"),
        (
            SMALL.replace("seed =", "sede ="),
            r"unknown key; data\.sede; did you mean 'seed'\?",
        ),
        (
            SMALL + "[data.labelings.a]\nof = 'x'\ngroup = {}\ngroups = {}\n",
            r"unknown key; data\.labelings\.a\.group; did you mean 'groups'\?",
        ),
        (
            SMALL + "[measures]\np = { metric = 'puritty', labeling = 'partition_1' }\n",
            r"unknown value; measures\.p\.metric = 'puritty'; did you mean 'purity'\?",
        ),
        (
            SMALL.replace("name =", "title ="),
            r"a required key is missing; methods\.0\.name; add it",
        ),
        (SMALL.replace('"ccib"', '"ccbi"'), r"unknown method; 'ccbi'; did you mean 'ccib'\?"),
        (SMALL.replace("seed = 3", "seed = 'x'"), r"a value does not fit; data\.seed = 'x'"),
        (SMALL.replace("seed = 3", "loader = 'wine'"), r"data must have one source; loader, gen"),
        (SMALL + "n = \n", r"this is not TOML; .*model\.toml: .*line 12.*; correct"),
        (SMALL + '[[methods]]\nname = "ccib"\n', "methods need different titles; CCIB; give each"),
        (SMALL.replace("seed = 3", "seed = 3\nrepeats = 0"), r"data\.repeats = 0"),
        (
            "[data]\nloader = 'wine'\nrepeats = 2\n[[methods]]\nname = 'ib'",
            "only a generator can sample",
        ),
        (
            SMALL + "[[tables]]\nname = 'a'\nmeasures = ['secnds']\n",
            r"tables\.0\.measures: unknown name; 'secnds'; did you mean 'seconds'",
        ),
        (
            SMALL + "[[tables]]\nname = 'a'\n[[tables.settings]]\nwhere = { dim = 1 }\n",
            r"tables\.0\.settings\.0\.where: .*'dim'; did you mean 'dims'",
        ),
        (
            SMALL + "[[tables]]\nname = 'a'\n[[tables.settings]]\npublished.X.seconds.men = 1\n",
            r"unknown value; tables\.0\.settings\.0\.published\.X\.seconds\.men",
        ),
        (
            SMALL + "[[figures]]\nname = 'a'\nx = 'dims.0'\ny = 'objectiv'\n",
            r"figures\.0\.y: .*'objectiv'; did you mean 'objective'",
        ),
        (
            "partial_labels = { labelling = 'partition_1', fraction = 0.1 }\n" + SMALL,
            r"unknown key; partial_labels\.labelling; did you mean 'labeling'",
        ),
        (
            "partial_labels = { labeling = 'partition_1', fraction = [0.1, 1.0] }\n" + SMALL,
            r"a value does not fit; partial_labels\.fraction\.1 = 1\.0; .*less than 1",
        ),
        (
            "partial_labels = { labeling = 'partition_1', fraction = 0 }\n" + SMALL,
            r"a value does not fit; partial_labels\.fraction\.0 = 0; .*greater than 0",
        ),
        (
            "partial_labels = { labeling = 'partition_1', per_class = -1 }\n" + SMALL,
            r"a value does not fit; partial_labels\.per_class\.0 = -1",
        ),
        (
            "partial_labels = { labeling = 'partition_1', per_class = 2, draw = 'rows' }\n" + SMALL,
            "partial_labels: per_class is a number of rows of every class; got draw = 'rows'",
        ),
        (
            "partial_labels = { labeling = 'partition_1' }\n" + SMALL,
            "partial_labels: either fraction or per_class is needed; got neither",
        ),
        (
            "partial_labels = { labeling = 'partition_1', fraction = 0.1, per_class = 2 }\n"
            + SMALL,
            "partial_labels: either fraction or per_class is needed; got both",
        ),
        (
            "partial_labels = { labeling = 'partition_1', per_class = 2, score = 'al' }\n" + SMALL,
            r"unknown value; partial_labels\.score = 'al'; did you mean 'all'",
        ),
        ("runs = 1000000000\n" + SMALL, r"does not fit; runs = 1000000000; .* equal to 100000"),
        (SMALL.replace("seed = 3", "repeats = 100001"), r"data\.repeats = 100001; .*100000"),
        (SMALL.replace("seed = 3", "seed = -1"), r"data\.seed = -1; .*equal to 0"),
        (SMALL.replace("seed = 3", "seed = 5000000000"), r"data\.seed = 5000000000; .*4000000000"),
        (SMALL.replace("seed = 3", "grid = { dims = [] }"), r"data\.grid\.dims = \[\]"),
        (SMALL + "grid = { cooling = [] }\n", r"methods\.0\.grid\.cooling = \[\]"),
        (SMALL + "runs = 1000000\n", r"methods\.0\.runs = 1000000"),
        (SMALL + f"n = [[{'9' * 500}]]\n", "an integer has at most 64 bits; got 1662"),
        (SMALL.replace("seed = 3", "image_shape = [0, 4]"), r"data\.image_shape\.0 = 0"),
        (
            SMALL.replace("seed = 3", "binarize = nan"),
            r"a value is not a number; data\.binarize = nan",
        ),
        (
            "partial_labels = { labeling = 'partition_1', per_class = 1000000000 }\n" + SMALL,
            r"partial_labels\.per_class\.0 = 1000000000",
        ),
        (
            SMALL + "[constraints]\nlabeling = 'partition_1'\npairs = [1000000000000]\n",
            r"constraints\.pairs\.0 = 1000000000000",
        ),
        (
            SMALL
            + f"[split]\nlabeling = 'partition_1'\nlabelled = {[0.1] * 100}\n"
            + f"unlabelled = {[0.1] * 100}\ntest = {[0.1] * 100}\n",
            "split: labelled x unlabelled x test are too many; got 1000000 combinations; list at",
        ),
        (SMALL + "a = " + "[" * 3000 + "]" * 3000 + "\n", "nested at most 16 levels deep"),
        *[
            (SMALL + f"[report]\npicture = '{name}'\n", r"report\.picture: a picture is a file in")
            for name in ("../x.png", "/tmp/x.png", "a/x.png", "C:x.png", "..", "plan.json", "x")
        ],
    ],
)
def test_mistakes_in_a_model_file_are_placed(write, text, message):
    with pytest.raises(InputError, match=message):
        read_model(write(text))


def test_all_mistakes_are_told_at_once(write):
    with pytest.raises(InputError) as caught:
        read_model(write(SMALL.replace("seed =", "sede =") + "[reprot]\n"))
    assert len(str(caught.value).splitlines()) == 2


def test_missing_model_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the model file; .*none\.toml"):
        read_model(tmp_path / "none.toml")


def test_quickstart_has_two_labelings_that_say_nothing_of_each_other():
    table = load_data(read_model(MODELS / "quickstart.toml"))
    assert table.X.shape == (723, 64)
    parity, stroke = table.labelings["parity"], table.labelings["stroke"]
    counts = pd.crosstab(parity, stroke).to_numpy()
    assert counts.min() > 0.24 * counts.sum()


def test_keep_and_derived_labelings(write):
    text = """
[data]
loader = "wine"
keep = { cultivar = [0, 2] }
standardize = true
[data.labelings.side]
of = "cultivar"
groups = { left = [0], right = [2] }
[[methods]]
name = "ib"
"""
    text = text.replace("[0, 2]", "['class_0', 'class_2']")
    text = text.replace("[0]", "['class_0']").replace("[2]", "['class_2']")
    table = load_data(read_model(write(text)))
    assert table.X.shape == (59 + 48, 13)
    np.testing.assert_allclose(table.X.mean(axis=0), 0, atol=1e-9)
    assert (table.labelings["side"] == "left").sum() == 59


def test_a_number_of_principal_components(write):
    text = """
[data]
loader = "wine"
standardize = true
components = 5
[[methods]]
name = "ib"
"""
    table = load_data(read_model(write(text)))
    assert table.X.shape == (178, 5) and table.feature_names[0] == "component 1"
    spread = np.cov(table.X.T, bias=True)
    np.testing.assert_allclose(spread, np.diag(np.diag(spread)), atol=1e-9)
    assert (np.diff(np.diag(spread)) < 0).all() and spread[0, 0] > 4
    with pytest.raises(InputError, match=r"data\.components = 14 for at most 13; lower components"):
        load_data(read_model(write(text.replace("components = 5", "components = 14"))))
    with pytest.raises(InputError, match=r"not columns of the data; got components = 5 and views"):
        read_model(write(text.replace("components = 5", "components = 5\nviews = [6, 7]")))


def test_tf_idf_weights_of_unit_rows(write):
    text = """
[data]
loader = "digits"
[[methods]]
name = "ib"
"""
    counts = load_data(read_model(write(text))).X
    weights = load_data(read_model(write(text.replace("[[", "tfidf = true\n[[")))).X
    n, present = len(counts), (counts > 0).sum(0)
    expected = counts * (np.log((1 + n) / (1 + present)) + 1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected)
    negative = text.replace('loader = "digits"', 'generator = "make_gaussian_views"\ntfidf = true')
    with pytest.raises(InputError, match=r"need counts; data\.tfidf = true for features down to -"):
        load_data(read_model(write(negative)))


def test_principal_components_of_the_rows_that_are_kept(write):
    text = """
[data]
loader = "iris"
keep = { species = ["setosa", "virginica"] }
drop = ["petal width (cm)"]
components = 0.95
[[methods]]
name = "ib"
"""
    table = load_data(read_model(write(text)))
    whole = load_data(read_model(write(text.replace("components = 0.95", ""))))
    assert whole.X.shape == (100, 3) and "petal width (cm)" not in whole.feature_names
    values = np.linalg.eigvalsh(np.cov(whole.X.T, ddof=0))[::-1]
    assert table.X.shape == (100, int(np.searchsorted(values.cumsum(), 0.95 * values.sum())) + 1)
    np.testing.assert_allclose(table.X.var(0), values[: table.X.shape[1]])
    assert table.feature_names[0] == "component 1"
    for change, message in (
        ('"petal widht"', r"no such column; data.drop: 'petal widht'; did you mean"),
        (", ".join(f'"{name} (cm)"' for name in (
            "petal width", "petal length", "sepal width", "sepal length"
        )), "no column is left"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            load_data(read_model(write(text.replace('"petal width (cm)"', change))))
    with pytest.raises(InputError, match=r"data\.components"):
        read_model(write(text.replace("0.95", "1.5")))
    with pytest.raises(
        InputError, match="not columns of the data; got components = 0.95 and views"
    ):
        read_model(write(text.replace("components", "views = [2, 1]\ncomponents")))
    with pytest.raises(InputError, match="columns of a generator have no names"):
        read_model(write(SMALL.replace("seed = 3", "drop = ['a']")))


def test_derived_labelings_have_to_cover_all_values(write):
    text = """
[data]
loader = "digits"
[data.labelings.low]
of = "digit"
groups = { low = [0, 1, 2, 3, 4] }
[[methods]]
name = "ib"
"""
    with pytest.raises(InputError, match=r"data\.labelings\.low has no group for 5, 6, 7, 8, 9"):
        load_data(read_model(write(text)))


@pytest.mark.parametrize("change", ["n_samples = 1000000000000000000", "n_samples = -60"])
def test_parameters_of_a_generator_that_cannot_be(write, change):
    with pytest.raises(InputError, match=r"data\.parameters do not fit make_binary_partitions; "):
        load_data(read_model(write(SMALL.replace("n_samples = 60", change))))


def test_an_image_has_as_many_pixels_as_there_are_columns(write):
    text = SMALL.replace("seed = 3", "image_shape = [3, 4]")
    with pytest.raises(InputError, match=r"data\.image_shape = \[3, 4\] for 10 columns; correct"):
        load_data(read_model(write(text)))


def test_unknown_generator_and_parameters(write):
    text = SMALL.replace("make_binary_partitions", "make_binary_partition")
    with pytest.raises(InputError, match="did you mean 'make_binary_partitions'"):
        load_data(read_model(write(text)))
    with pytest.raises(InputError, match=r"data\.parameters do not fit make_binary_partitions"):
        load_data(read_model(write(SMALL.replace("n_samples =", "n_sample ="))))


def test_a_wanted_labeling_has_to_be_one_of_the_data(write):
    text = "partial_labels = { labeling = 'partition_2', fraction = 0.1 }\n" + SMALL
    with pytest.raises(
        InputError, match=r"partial_labels\.labeling = 'partition_2'; did you mean 'part"
    ):
        load_data(read_model(write(text)))


def test_methods_without_wanted_labels_are_refused_but_may_decline(write, monkeypatch):
    text = "partial_labels = { labeling = 'partition_1', fraction = 0.1 }\n" + SMALL
    assert read_model(write(text)).methods[0].use_labels
    # All present methods accept them.
    monkeypatch.setattr(CCIB, "capabilities", replace(CCIB.capabilities, labels=False))
    with pytest.raises(
        InputError, match=r"methods\.0: ccib takes no target labels; .*'partition_1'"
    ):
        read_model(write(text))
    assert not read_model(write(text + "use_labels = false\n")).methods[0].use_labels


@pytest.mark.parametrize(
    ("amount", "counts"),
    [
        ({"fraction": 0.1}, [6, 3, 1]),
        ({"fraction": 0.5}, [30, 15, 3]),
        ({"per_class": 4}, [4, 4, 4]),
        ({"per_class": 0}, [0, 0, 0]),
    ],
)
def test_rows_are_drawn_class_by_class(amount, counts):
    labels = np.random.default_rng(0).permutation(np.repeat(["b", "a", "c"], [30, 60, 6]))
    partial = {"labeling": "type", "score": "unlabelled", **amount}
    told = sample_labels(labels, partial, (0, 1))
    assert [(labels[told.labelled] == name).sum() for name in "abc"] == counts
    # Given labels are correct, all other labels are unknown, and only other rows are scored.
    np.testing.assert_array_equal(
        told.y[told.labelled], np.unique(labels, return_inverse=True)[1][told.labelled]
    )
    assert (told.y[~told.labelled] == -1).all()
    np.testing.assert_array_equal(told.scored, ~told.labelled)
    assert sample_labels(labels, partial | {"score": "all"}, (0, 1)).scored.all()


EMPTY = {"text": ["b", "a", "", "a", "b", " ", "a", None], "number": [2, 1, "", 1, 2, "", 1, ""]}


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("amount", ["per_class = 1", "fraction = 0.4, draw = 'rows'"])
def test_empty_cells_of_wanted_labels_are_neither_drawn_nor_scored(write, tmp_path, kind, amount):
    frame = pd.DataFrame({"x": range(8), "type": EMPTY[kind], "other": [*"uvuvuvuv"]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    head = f"[data]\nfile = '{tmp_path}/rows.csv'\nlabel_columns = ['type', 'other']\n"
    partial = f"[partial_labels]\nlabeling = 'type'\n{amount.replace(', ', chr(10))}\n"
    method = "[[methods]]\nname = 'ccib'\n"
    model = read_model(write(head + partial + method))
    told = sample_labels(
        load_data(model).labelings["type"], model.partial_labels.amounts[0], (0, 0)
    )
    empty = np.isin(np.arange(8), [2, 5, 7])
    assert told.labelled.sum() == 2 and (told.y[empty] == -1).all()
    np.testing.assert_array_equal(told.scored, ~told.labelled & ~empty)
    codes = np.array([1, 0, -1, 0, 1, -1, 0, -1])
    np.testing.assert_array_equal(told.y, np.where(told.labelled, codes, -1))
    # Known labels are complete, also if they have another use.
    with pytest.raises(InputError, match="column 'type' has missing values"):
        load_data(read_model(write("known = 'type'\n" + head + partial + method)))


def test_draws_follow_from_the_seed_and_grow():
    labels = np.arange(200) % 4
    rows = {}
    for fraction in (0.1, 0.3):
        for seed in ((0, 0), (0, 1), (1, 0)):
            partial = {"labeling": "type", "score": "unlabelled", "fraction": fraction}
            rows[fraction, seed] = sample_labels(labels, partial, seed).labelled
            np.testing.assert_array_equal(
                rows[fraction, seed], sample_labels(labels, partial, seed).labelled
            )
    for seed in ((0, 0), (0, 1), (1, 0)):
        assert rows[0.3, seed][rows[0.1, seed]].all()
    assert not (rows[0.3, (0, 0)] == rows[0.3, (0, 1)]).all()
    assert not (rows[0.3, (0, 0)] == rows[0.3, (1, 0)]).all()
    assert not (rows[0.3, (0, 1)] == rows[0.3, (1, 0)]).all()


@pytest.mark.parametrize("amount", [{"per_class": 3}, {"per_class": 5}, {"fraction": 0.9}])
def test_a_class_with_no_row_left_is_refused(amount):
    labels = np.repeat([0, 1], [50, 3])
    with pytest.raises(InputError, match=r"no row left without .* type = 1 has 3; ask for fewer"):
        sample_labels(labels, {"labeling": "type", "score": "all", **amount}, (0, 0))


ROWS = {"labeling": "type", "score": "all", "draw": "rows"}


def test_rows_are_drawn_whatever_their_class():
    labels = np.random.default_rng(0).permutation(np.repeat(["b", "a", "c"], [150, 300, 30]))
    codes = np.unique(labels, return_inverse=True)[1]
    few, more = (sample_labels(labels, ROWS | {"fraction": f}, (0, 1)) for f in (0.1, 0.3))
    assert few.labelled.sum() == 48 and more.labelled.sum() == 144
    assert more.labelled[few.labelled].all()
    np.testing.assert_array_equal(more.y, np.where(more.labelled, codes, -1))
    amount = ROWS | {"fraction": 0.1}
    chosen = [codes[sample_labels(labels, amount, (0, i)).labelled] for i in range(50)]
    counts = [np.bincount(c, minlength=3) for c in chosen]
    assert np.std(counts, axis=0).min() > 0  # not by class
    np.testing.assert_allclose(np.mean(counts, 0), [30, 15, 3], atol=1.5)
    with pytest.raises(InputError, match="no row is left without a label; 3 of 3 rows have one"):
        sample_labels(labels[:3], ROWS | {"fraction": 0.9}, (0, 0))


@pytest.mark.parametrize("amount", [{"draw": "rows", "fraction": 0.4}, {"per_class": 40}])
def test_some_labels_are_wrong(amount):
    codes = np.arange(300) % 3
    partial = {"labeling": "type", "score": "all"} | amount
    clean, few, many = (sample_labels(codes, partial | {"wrong": w}, (0, 1)) for w in (0, 0.1, 0.5))
    np.testing.assert_array_equal(clean.y, np.where(clean.labelled, codes, -1))
    for told, count in ((few, 12), (many, 60)):
        np.testing.assert_array_equal(told.labelled, clean.labelled)
        assert told.labelled.sum() == 120 and (told.y != clean.y).sum() == count
        np.testing.assert_array_equal(told.y >= 0, told.labelled)
    still = few.y != clean.y
    np.testing.assert_array_equal(few.y[still], many.y[still])
    # Both other classes occur.
    assert set((many.y - clean.y)[many.y != clean.y] % 3) == {1, 2}
    with pytest.raises(InputError, match="a single class has no wrong labels"):
        sample_labels(np.zeros(300), partial | {"wrong": 0.1}, (0, 1))


def test_labels_of_some_classes_alone():
    codes = np.repeat(np.arange(4), [10, 20, 70, 100])
    pairs = set()
    for i in range(40):
        told = [
            sample_labels(codes, ROWS | {"fraction": f, "classes": 2}, (0, i)) for f in (0.1, 0.45)
        ]
        held = [set(t.y[t.labelled]) for t in told]
        assert held[0] <= held[1] and len(held[1]) == 2
        pairs.add(tuple(sorted(held[1])))
        size = np.isin(codes, [*held[1]]).sum()
        assert told[0].labelled.sum() == 20 and told[1].labelled.sum() == min(90, size)
    # Three tenths of the rows; classes 0 and 1 have less.
    assert pairs == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    alone = sample_labels(
        codes, {"labeling": "type", "score": "all", "per_class": 5, "classes": 2}, (0, 0)
    )
    assert np.unique(alone.y[alone.labelled]).size == 2 and alone.labelled.sum() == 10
    # No pair has as many rows: use the largest classes.
    flat = np.repeat(np.arange(8), [12, *[10] * 6, 12])
    assert set(
        flat[sample_labels(flat, ROWS | {"fraction": 0.2, "classes": 2}, (0, 0)).labelled]
    ) == {0, 7}
    with pytest.raises(InputError, match="labels of 5 classes, and type has 4"):
        sample_labels(codes, ROWS | {"fraction": 0.1, "classes": 5}, (0, 0))


def test_wanted_amounts_are_combined(write):
    text = "partial_labels = { labeling = 'partition_1', fraction = [0.1, 0.2], draw = 'rows', "
    model = read_model(write(text + "wrong = [0, 0.3], classes = 2 }\n" + SMALL))
    assert [(a["fraction"], a["wrong"]) for a in model.partial_labels.amounts] == [
        (0.1, 0), (0.1, 0.3), (0.2, 0), (0.2, 0.3)
    ]  # fmt: skip
    assert all(a["draw"] == "rows" and a["classes"] == 2 for a in model.partial_labels.amounts)


def test_several_known_labelings_become_columns():
    assert known_array([]) is None
    one = np.array(["a", "b"])
    assert known_array([one]) is one
    both = known_array([one, np.array([7, 7])])
    np.testing.assert_array_equal(both, [[0, 0], [1, 0]])


# hostile files

PLAIN = "[data]\nloader = 'iris'\n[[methods]]\nname = 'ib'\nn_clusters = 3\n"
DEEP = r"keys and values are nested at most 16 levels deep; .* flatten them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN + "n_init = " + "9" * 5000, "an integer has at most 64 bits; .* of thousands"),
        (PLAIN + "n_init = 1" + "0" * 400, r"64 bits; got 1330 bits in methods\.0\.n_init"),
        (".".join("a" * 2000) + " = 1\n" + PLAIN, DEEP),
        # Text that ends in four quotes hides no brackets; backslashes take no quadratic time.
        ("x = [ '''a'''', " + "[" * 3000 + "]" * 3001 + "\n" + PLAIN, DEEP),
        ('x = [ """a"""", ' + "[" * 3000 + "]" * 3001 + "\n" + PLAIN, DEEP),
        ('\\"""\n' * 40_000 + "\\", "this is not TOML"),
        (".".join("a" * 20_000) + " = 1\n" + PLAIN, DEEP),
        (" . ".join(["'a'"] * 20_000) + " = 1\n" + PLAIN, DEEP),
        (PLAIN + "[" + ".".join("a" * 20_000) + "]\n", DEEP),
        ("a = " + "[" * 20_000 + "]" * 20_000 + "\n" + PLAIN, DEEP),
        ("a = " + "{a=" * 20_000 + "1" + "}" * 20_000 + "\n" + PLAIN, DEEP),
        ("a." * 10 + "b = " + "{a=" * 10 + "1" + "}" * 10 + "\n" + PLAIN, DEEP),
        (
            "# " + "." * 2**18 + "\n" + PLAIN,
            r"at most 262144 bytes; .* has more; move data to a",
        ),
        (PLAIN + "tol = nan", r"a value is not a number; methods\.0\.tol = nan; choose"),
        (PLAIN + "tol = 2020-01-01", r"no key takes a date or time; methods\.0\.tol = 2020-01-01"),
        ('"a\\nb" = 1\n' + PLAIN, r"200 printable characters; got 'a\\nb'; choose another"),
        ("a" * 201 + " = 1\n" + PLAIN, r"200 printable characters; got 'a{200}'\.\.\.; choose ano"),
        (
            "title = [" + "1," * 9000 + "]\n" + PLAIN,
            r"title = list of 9000 entries; input should be a valid",
        ),
        (PLAIN + "".join(f"a{i} = 1\n" for i in range(200)), "at most 100 parameters; got 201"),
        (
            PLAIN + "checkpoint = '/tmp/a'",
            "must not name files to write; got checkpoint; leave checkpoint out",
        ),
        (PLAIN.replace("iris'", "iris'\ncomponents = -5"), "a number from 1 to 100000, .* got -5"),
        (PLAIN.replace("iris'", "iris'\nimage_shape = [-5, 3]"), r"data\.image_shape\.0 = -5"),
        (PLAIN.replace("iris'", "iris'\nbinarize = inf"), r"data\.binarize = inf; input should be"),
        ("runs = 1000000000\n" + PLAIN, "runs = 1000000000; input should be less"),
    ],
)
def test_hostile_files_get_one_line(write, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_model(write(text))
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 600


def test_dots_and_brackets_of_texts_and_comments_are_no_levels(write):
    many = "[{a." * 20
    text = f'# {many}\ntitle = "{many}"\nsource = """\n{many}\n"""\n'
    model = read_model(write(text + f"description = '''{many}'''\n" + PLAIN))
    assert model.title == model.description == many
    assert all(read_model(path).methods for path in MODELS.glob("*.toml"))


def test_many_mistakes_are_not_all_shown(write):
    text = "".join(f"a{i} = 1\n" for i in range(50)) + PLAIN
    with pytest.raises(InputError, match="30 further errors are not shown") as caught:
        read_model(write(text))
    assert len(str(caught.value).splitlines()) == 21


def test_data_sets_and_methods_are_counted_before_they_are_combined(write):
    others = "".join(f"[[methods]]\nname = 'ib'\ntitle = '{i}'\n" for i in range(200))
    text = PLAIN + others + "[data.grid]\nrows = [" + "[0, 1]," * 20_000 + "]"
    with pytest.raises(InputError, match="too many pairs of a data set and a method; .* 4020000"):
        expand(read_model(write(text)))


# tables


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=12),
            "b": rng.integers(0, 5, 12),
            "species": np.repeat(["x", "y", "z"], 4),
            "note": ["text"] * 12,
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_tables_of_columns(frame, tmp_path, suffix):
    path = tmp_path / f"data.{suffix}"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    table = tables.read_table(path, labelings=["species"])
    assert table.feature_names == ["a", "b"]
    assert table.left_out == ["note"]
    np.testing.assert_allclose(table.X, frame[["a", "b"]])
    assert list(table.labelings["species"][:5]) == ["x"] * 4 + ["y"]
    assert tables.read_table(path, columns=["b"]).feature_names == ["b"]
    assert tables.read_table(path, drop=["b"]).feature_names == ["a"]


def test_an_index_column_names_rows(frame, tmp_path):
    frame.index = [f"r{i}" for i in range(12)]
    frame.to_csv(tmp_path / "data.csv")
    table = tables.read_table(tmp_path / "data.csv", drop=["species", "note"])
    assert table.feature_names == ["a", "b"]
    assert list(table.row_names[:2]) == ["r0", "r1"]


def test_parquet_without_an_engine_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "data.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'nrprob\[parquet\]'"):
        tables.read_table(tmp_path / "data.parquet")


def test_npz_dense_sparse_and_named(tmp_path):
    X = np.arange(12).reshape(4, 3)
    np.savez(tmp_path / "a.npz", X=X, group=np.array([0, 0, 1, 1]))
    table = tables.read_table(tmp_path / "a.npz", labelings=["group"])
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.labelings["group"], [0, 0, 1, 1])
    np.savez(tmp_path / "b.npz", counts=X, group=np.zeros(4))
    np.testing.assert_array_equal(tables.read_table(tmp_path / "b.npz").X, X)
    scipy.sparse.save_npz(tmp_path / "c.npz", scipy.sparse.csr_array(X))
    stored = tables.read_table(tmp_path / "c.npz").X
    assert scipy.sparse.issparse(stored)
    np.testing.assert_array_equal(stored.toarray(), X)
    np.savez(tmp_path / "d.npz", one=X, two=X)
    with pytest.raises(InputError, match=r"has one, two; call it 'X'"):
        tables.read_table(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"drop": ["speces"]}, "no such column; 'speces'; did you mean 'species'"),
        ({"columns": ["note"]}, "features must be numeric; note"),
        ({"drop": ["a", "b"]}, "no numeric column is left"),
    ],
)
def test_columns_that_do_not_serve(frame, tmp_path, arguments, message):
    frame.to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(InputError, match=message):
        tables.read_table(tmp_path / "data.csv", **arguments)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="no such data file"):
        tables.read_table(tmp_path / "none.csv")
    (tmp_path / "data.xyz").write_text("1")
    with pytest.raises(InputError, match=r"cannot tell the format"):
        tables.read_table(tmp_path / "data.xyz")
    (tmp_path / "data.npz").write_text("not a zip file")
    with pytest.raises(InputError, match=r"cannot read the file as NPZ"):
        tables.read_table(tmp_path / "data.npz")
    (tmp_path / "data.csv").write_text("")
    with pytest.raises(InputError, match=r"cannot read the file as CSV"):
        tables.read_table(tmp_path / "data.csv")


@pytest.mark.parametrize(
    "X",
    [
        np.array([[b"a", b"b"]] * 4),
        np.ones((4, 2)) * 1j,
        np.zeros((4, 2), "M8[s]"),
        np.arange(4.0),
        np.float64(3),
        np.ones((0, 2)),
        np.ones((4, 0)),
    ],
)
def test_rows_are_a_matrix_of_numbers(tmp_path, X):
    np.savez(tmp_path / "a.npz", X=X)
    with pytest.raises(InputError, match=r"rows are a numeric matrix; X of .*a\.npz has shape"):
        tables.read_table(tmp_path / "a.npz")


def test_a_labeling_has_a_value_for_every_row(tmp_path):
    np.savez(tmp_path / "a.npz", z=np.int64(3))
    scipy.sparse.save_npz(tmp_path / "b.npz", scipy.sparse.csr_array(np.eye(3)))
    for name, file in (("z", "a.npz"), ("X", "b.npz")):
        with pytest.raises(
            InputError, match=f"{name} of .*{file} must be an array with one value per row"
        ):
            tables.read_column(tables.read_contents(tmp_path / file), name, tmp_path / file)


def test_labelings_are_groups():
    assert tables.as_labels(np.array([1.0, 2.0]), "z").dtype.kind == "i"
    assert list(tables.as_labels(np.array(["a", "b"], dtype=object), "z")) == ["a", "b"]
    with pytest.raises(InputError, match="z has missing values; 1 of 2"):
        tables.as_labels(np.array(["a", None], dtype=object), "z")
    with pytest.raises(InputError, match="z has missing values; 1 of 2"):
        tables.as_labels(np.array([1.0, np.nan]), "z")
    with pytest.raises(InputError, match="z is a measurement .* 50 distinct floats"):
        tables.as_labels(np.linspace(0, 1, 50), "z")
