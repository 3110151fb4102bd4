"""Read annotated data (AnnData objects) and write results back to them.

The package anndata is not imported; attributes of the object show which parts it has.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.exceptions import short_repr

__all__ = ["annotate", "rows_of"]


# Names of embeddings that can be clustered; UMAP and t-SNE distort densities and distances.
_EMBEDDINGS = ("pca", "harmony", "scvi", "lsi")
_MANY_GENES = 100  # number of dense genes above which a message names an embedding


@dataclass(frozen=True, eq=False)
class AnnotatedRows:
    """Part of annotated data that is the input of a fit; made by `rows_of`.

    ``data`` is the AnnData object. ``layer`` or ``obsm`` names the selected entry. If both are
    None, ``X`` of the object is selected.
    """

    data: Any
    layer: str | None = None
    obsm: str | None = None

    def __len__(self) -> int:
        return int(self.data.n_obs)

    @property
    def obs(self) -> Any:
        """Frame ``obs`` of the annotated data, with one row per sample."""
        return self.data.obs


def rows_of(adata: Any, *, layer: str | None = None, obsm: str | None = None) -> Any:
    """Select a layer, or an entry of obsm, of annotated data as input of `fit` and `predict`.

    Without this function, estimators use the ``X`` of annotated data.

    Parameters
    ----------
    adata : AnnData
        Annotated data. Columns of ``obs`` can be known structure, as in ``known="batch"``.
    layer : str, optional
        Name of a layer, such as a layer of raw counts.
    obsm : str, optional
        Name of an entry of ``obsm``, such as "X_pca"; an alternative to ``layer``.

    Returns
    -------
    object
        Object to pass as ``X``.

    Raises
    ------
    TypeError
        If ``adata`` is not annotated data.
    ValueError
        If ``adata`` has no such entry, or both ``layer`` and ``obsm`` are passed.

    See Also
    --------
    annotate : Write the results of a fit into annotated data.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> from nrprob import CCIB, rows_of
    >>> adata = anndata.AnnData(layers={"counts": np.random.default_rng(0).poisson(3.0, (40, 6))})
    >>> adata.obs["batch"] = ["a", "b"] * 20
    >>> model = CCIB(2, random_state=0).fit(rows_of(adata, layer="counts"), known="batch")
    >>> model.labels_.shape
    (40,)
    """
    _check_annotated(adata)
    if layer is not None and obsm is not None:
        raise ValueError(
            f"rows come from a layer or from obsm; got layer={short_repr(layer)} and "
            f"obsm={short_repr(obsm)}; pass only one of them"
        )
    for what, name, entries in (("layer", layer, adata.layers), ("obsm", obsm, adata.obsm)):
        if name is not None and not (isinstance(name, str) and name in entries):
            # Some versions list X among the layers, without a name.
            listed = ", ".join(repr(entry) for entry in entries if entry is not None) or "none"
            raise ValueError(
                f"{what} must name an entry of adata; got {short_repr(name)}, and adata has "
                f"{listed}; pass one of these names"
            )
    return AnnotatedRows(adata, layer, obsm)


def is_annotated(X: Any) -> bool:
    """Whether ``X`` is annotated data, or `AnnotatedRows`."""
    if isinstance(X, AnnotatedRows):
        return True
    return type(X).__module__.split(".")[0] == "anndata" and hasattr(X, "obs")


def _check_annotated(adata: Any) -> None:
    if not is_annotated(adata) or isinstance(adata, AnnotatedRows):
        raise TypeError(
            f"adata must be annotated data; got {type(adata).__name__}; pass an AnnData object"
        )


def matrix_of(X: Any) -> Any:
    """Features (n_samples, n_features) of annotated data as an array or a sparse matrix.

    Raises
    ------
    ValueError
        If the annotated data have no ``X``.
    """
    rows = X if isinstance(X, AnnotatedRows) else AnnotatedRows(X)
    data = rows.data.to_memory() if rows.data.isbacked else rows.data
    result = data.X
    if rows.layer is not None:
        result = data.layers[rows.layer]
    elif rows.obsm is not None:
        result = data.obsm[rows.obsm]
    if result is None:
        raise ValueError(
            "annotated data have no X; got X=None; select a layer with nrprob.rows_of, or set X"
        )
    if not data.is_view:
        return result
    # A view of other data has its own array type.
    return np.array(result) if isinstance(result, np.ndarray) else result.copy()


def name_features(layer: str | None = None, obsm: str | None = None) -> str:
    """Name of the features of annotated data in a message: "X", "layer 'counts'" or "obsm 'a'"."""
    if obsm is not None:
        return f"obsm {obsm!r}"
    return "X" if layer is None else f"layer {layer!r}"


def describe_counts(X: Any, *, as_options: bool = False) -> str:
    """Describe features of annotated data that are not raw counts, for a message.

    ``X`` are annotated data, or `AnnotatedRows`. If another entry holds raw counts, the text names
    this entry, and how to select it: in Python, or on the command line with ``as_options``. If many
    genes are dense, the text also names an embedding in obsm. The text is empty if the features are
    counts, or an entry of obsm.
    """
    rows = X if isinstance(X, AnnotatedRows) else AnnotatedRows(X)
    adata = rows.data
    if rows.obsm is not None or has_counts(values := matrix_of(rows)):
        return ""

    def select(part: str, name: str) -> str:
        if as_options:
            return f"--{part} {shlex.quote(name)} fits"
        return f"nrprob.rows_of(adata, {part}={name!r}) selects"

    layers = [name for name, values in adata.layers.items() if name and has_counts(values)]
    what = name_features(rows.layer)
    text = f"{what} holds no raw counts, but values that were transformed or normalised"
    if layers:
        text += f"; layer {layers[0]!r} holds counts: {select('layer', layers[0])} these"
    elif adata.raw is not None and has_counts(adata.raw.X):
        text += "; raw.X holds counts: store them as X or as a layer to fit these"
    # ConditionalMixture, which is recommended for dense values, would fit all genes.
    embeddings = [name for name in adata.obsm if any(e in name.lower() for e in _EMBEDDINGS)]
    if embeddings and adata.n_vars > _MANY_GENES and not hasattr(values, "tocsr"):
        name = "X_pca" if "X_pca" in embeddings else embeddings[0]
        text += (
            f"; obsm {name!r} holds an embedding: {select('obsm', name)} it instead of all "
            f"{adata.n_vars} genes"
        )
    return text


def has_counts(values: Any) -> bool:
    """Whether all entries of a matrix, dense or sparse, are whole numbers of at least 0."""
    entries = values.data if hasattr(values, "tocsr") else np.asarray(values)
    return bool((entries >= 0).all() and (entries == np.floor(entries)).all())


def feature_names_of(X: Any) -> list[str] | None:
    """Feature names of annotated data; None for other objects.

    Repeated names get a number, as in anndata itself: "a", "a-1". Columns of an entry of obsm are
    numbered after its name, such as "X_pca_0", unless the entry is a frame.
    """
    if not is_annotated(X):
        return None
    if isinstance(X, AnnotatedRows) and X.obsm is not None:
        entry = X.data.obsm[X.obsm]
        if hasattr(entry, "columns"):
            return [str(name) for name in entry.columns]
        return [f"{X.obsm}_{j}" for j in range(entry.shape[1])]
    data = X.data if isinstance(X, AnnotatedRows) else X
    names = [str(name) for name in data.var_names]
    taken, result = set(names), dict[str, None]()
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(1))
        if name in result:
            name = next(new for new in numbered if new not in taken)
        taken.add(name)
        result[name] = None
    return list(result)


def annotate(
    adata: Any, model: Any, *, key_added: str = "nrprob", copy: bool = False
) -> Any | None:
    """Write the results of a fit into annotated data.

    Parameters
    ----------
    adata : AnnData
        The data whose rows ``model`` was fitted to. The function adds these entries:
        ``obs[key_added]`` holds the clusters as categories "0", "1", and so on, and missing values
        for rows without a cluster. With several clusterings, such as from `explore`, there are
        ``obs[key_added + "_1"]`` and so on. ``uns[key_added]`` holds the parameters of the fit and,
        for an Exploration, the test results of every clustering, as plain values.
        ``obsm[key_added + "_membership"]`` holds the probabilities (n_samples, n_clusters) of the
        clusters, given the row, if the model has memberships.
    model : fitted estimator or Exploration
        Estimator or Exploration with ``labels_``, fitted to the rows of ``adata``.
    key_added : str, default="nrprob"
        Name of the entries. Entries that an earlier call wrote under this name are removed first.
        Any other existing entry with this name raises ValueError.
    copy : bool, default=False
        Whether to change and return a copy, and leave ``adata`` unchanged.

    Returns
    -------
    AnnData or None
        The copy if ``copy`` is True, otherwise None.

    Raises
    ------
    TypeError
        If ``adata`` is not annotated data, or ``model`` is not fitted.
    ValueError
        If ``model`` was fitted to another number of rows, or if the function would overwrite an
        entry that it has not written.

    See Also
    --------
    rows_of : Select a layer, or an entry of obsm, for a fit.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> from nrprob import CCIB, annotate
    >>> adata = anndata.AnnData(np.random.default_rng(0).poisson(3.0, (40, 6)).astype(float))
    >>> adata.obs["batch"] = ["a", "b"] * 20
    >>> annotate(adata, CCIB(2, random_state=0).fit(adata, known="batch"))
    >>> adata.obs["nrprob"].cat.categories.tolist(), adata.uns["nrprob"]["method"]
    (['0', '1'], 'CCIB')
    """
    _check_annotated(adata)
    if isinstance(model, type) or not hasattr(model, "labels_"):
        raise TypeError(
            f"model must be fitted; got {type(model).__name__} without labels_; fit it first"
        )
    labels = np.asarray(model.labels_)
    if len(labels) != adata.n_obs:
        raise ValueError(
            f"model must be fitted to the rows of adata; got a fit of {len(labels)} rows for "
            f"{adata.n_obs} rows; pass the data of the fit"
        )
    adata = adata.copy() if copy else adata
    annotate_rows(adata, model, np.arange(adata.n_obs), key_added)
    return adata if copy else None


def annotate_rows(
    adata: Any,
    model: Any,
    rows: np.ndarray,
    key_added: str = "nrprob",
    names: Sequence[Sequence[str]] = (),
) -> None:
    """Write the results of a fit to some rows into annotated data, as `annotate` does.

    Parameters
    ----------
    adata : annotated data, which the function changes
    model : fitted estimator or Exploration
    rows : indices of the fitted rows of ``adata``; other rows have no cluster
    key_added : name of the entries
    names : for every clustering, names of its clusters as categories; by default numbers
    """
    import pandas as pd

    from nrprob import __version__

    labels = np.asarray(model.labels_)
    columns = {key_added: labels}
    if labels.ndim > 1:
        columns = {f"{key_added}_{r}": column for r, column in enumerate(labels.T, 1)}
    for where, name in _check_free(adata, key_added, list(columns)):
        if name in getattr(adata, where):
            del getattr(adata, where)[name]
    for r, (name, column) in enumerate(columns.items()):
        codes = np.full(adata.n_obs, -1)
        codes[rows] = np.maximum(column, -1)
        default = [str(cluster) for cluster in range(int(codes.max(initial=-1)) + 1)]
        titles = [*names[r], *default[len(names[r]) :]] if r < len(names) else default
        adata.obs[name] = pd.Categorical.from_codes(codes, titles)
    entries = {"obs": np.array(list(columns))}
    membership = getattr(model, "membership_", None)
    if isinstance(membership, np.ndarray) and len(membership) == len(labels):
        name = f"{key_added}_membership"
        if len(rows) < adata.n_obs:
            fitted, membership = membership, np.full((adata.n_obs, membership.shape[1]), np.nan)
            membership[rows] = fitted
        adata.obsm[name], entries["obsm"] = membership, np.array([name])
    description = _describe_model(model)
    adata.uns[key_added] = {"version": __version__, "entries": entries, **description}


def _check_free(adata: Any, key: Any, columns: list[str]) -> list[tuple[str, str]]:
    """Raise ValueError if `annotate` would overwrite an entry that it has not written.

    ``key`` is the argument ``key_added`` of `annotate`, and ``columns`` are the columns of ``obs``
    to write. The function returns the entries that an earlier call wrote with this ``key_added``,
    as pairs of "obs" or "obsm" and a name.
    """
    if not (isinstance(key, str) and key):
        raise ValueError(
            f"key_added must be a name; got {short_repr(key)}; pass a text that is not empty"
        )
    entry, earlier = adata.uns.get(key), []
    names = [("obs", name) for name in columns] + [("obsm", f"{key}_membership")]
    if isinstance(entry, Mapping) and {"version", "method", "entries"} <= entry.keys():
        written = entry["entries"]
        earlier = [(where, str(name)) for where in written for name in written[where]]
    else:
        names.append(("uns", key))
    taken = [
        f"{where}[{short_repr(name)}]"
        for where, name in names
        if (where, name) not in earlier and name in getattr(adata, where)
    ]
    if taken:
        raise ValueError(
            f"key_added must be an unused name, or the name of earlier results; got "
            f"{short_repr(key)}, and adata has {' and '.join(taken)} already; pass another name"
        )
    return earlier


def _describe_model(model: Any, evidence: Any = None) -> dict[str, Any]:
    """Describe a fit or an Exploration by values of types that an h5ad file can store.

    ``evidence`` is the significance test of the fit, if there is one.
    """
    parameters = getattr(model, "params_", {})
    if hasattr(model, "get_params"):
        parameters = model.get_params(deep=False)
    result = {"method": type(model).__name__, "params": _plain_values(parameters)}
    result |= _plain_values({name: getattr(model, name, None) for name in _FITTED_ATTRIBUTES})
    if evidence is not None:
        values = {
            k: v for k, v in vars(evidence).items() if isinstance(v, _PLAIN_TYPES | np.generic)
        }
        result["evidence"] = {"summary": str(evidence), **_plain_values(values)}
    if hasattr(model, "evidence_"):
        pairs = itertools.zip_longest(model.estimators_, model.evidence_)
        result["clusterings"] = {str(r): _describe_model(*pair) for r, pair in enumerate(pairs, 1)}
        if model.rejected_ is not None:
            result["rejected"] = _describe_model(*model.rejected_)
    return result


_FITTED_ATTRIBUTES = ("objective_", "n_clusters_", "converged_", "reason_")
_PLAIN_TYPES = bool | int | float | str


def _plain_values(values: dict[str, Any]) -> dict[str, Any]:
    """Convert attribute values, by name, to types that an h5ad file can store.

    Attributes that are None are left out. The trailing underscore of a name is removed.
    """
    return {
        name.removesuffix("_"): _plain_value(value)
        for name, value in values.items()
        if value is not None
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    return repr(value)
