"""Read annotated data (AnnData objects) and write results back to them.

The package anndata is not imported: attributes of the object say which parts it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.exceptions import short_repr

__all__ = ["annotate", "rows_of"]


@dataclass(frozen=True, eq=False)
class AnnotatedRows:
    """Rows of annotated data that are not its ``X``; see `rows_of`."""

    data: Any
    layer: str | None = None
    obsm: str | None = None

    def __len__(self) -> int:
        return int(self.data.n_obs)

    @property
    def obs(self) -> Any:
        """What is said of the rows."""
        return self.data.obs


def rows_of(adata: Any, *, layer: str | None = None, obsm: str | None = None) -> Any:
    """Rows of annotated data other than its ``X``, for `fit`, `predict` and the like.

    Parameters
    ----------
    adata : AnnData
        Its ``obs`` has the columns that ``known="batch"`` names.
    layer : str, optional
        Name of a layer, such as one of raw counts.
    obsm : str, optional
        Name of an entry of ``obsm`` instead, such as "X_pca".

    Returns
    -------
    object
        What a fit takes as ``X``.

    Raises
    ------
    TypeError
        If ``adata`` is something else.
    ValueError
        If it has no such entry, or both are named.

    See Also
    --------
    annotate : writes what a fit has found.

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
            f"rows are of a layer or of obsm; got layer={short_repr(layer)} and "
            f"obsm={short_repr(obsm)}; name one"
        )
    for what, name, entries in (("layer", layer, adata.layers), ("obsm", obsm, adata.obsm)):
        if name is not None and not (isinstance(name, str) and name in entries):
            # Some versions have X among the layers, under no name.
            listed = ", ".join(repr(entry) for entry in entries if entry is not None) or "none"
            raise ValueError(
                f"{what} names what adata does not have; got {short_repr(name)}, and it has "
                f"{listed}; name one of these"
            )
    return AnnotatedRows(adata, layer, obsm)


def is_annotated(X: Any) -> bool:
    """Whether ``X`` is annotated data, or rows of such."""
    if isinstance(X, AnnotatedRows):
        return True
    return type(X).__module__.split(".")[0] == "anndata" and hasattr(X, "obs")


def _check_annotated(adata: Any) -> None:
    if not is_annotated(adata) or isinstance(adata, AnnotatedRows):
        raise TypeError(
            f"adata must be annotated data; got {type(adata).__name__}; pass an AnnData object"
        )


def matrix_of(X: Any) -> Any:
    """Rows of annotated data as an array or a sparse matrix.

    Raises
    ------
    ValueError
        If it has none.
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
            "annotated data have no rows; got X=None; name a layer by nrprob.rows_of, or set X"
        )
    if not data.is_view:
        return result
    # Of a part of other data: an array that knows of them.
    return np.array(result) if isinstance(result, np.ndarray) else result.copy()


def feature_names_of(X: Any) -> list[str] | None:
    """Names of the columns of annotated data; none of an entry of obsm, or of anything else.

    Names that occur again get a number, as anndata itself would give them: "a", "a-1".
    """
    if not is_annotated(X) or (isinstance(X, AnnotatedRows) and X.obsm is not None):
        return None
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
    """Write what a fit has found into annotated data.

    Parameters
    ----------
    adata : AnnData
        The data whose rows ``model`` was fitted to, which is changed, or a copy of it:
        ``obs[key_added]`` holds the clusters as categories "0", "1", and so on, and none of rows
        that are in no cluster; with several clusterings of the rows, as `explore` returns them,
        ``obs[key_added + "_1"]`` and so on. ``uns[key_added]`` says how they were found, with
        parameters, and of an Exploration the evidence of every clustering, as plain values; and
        ``obsm[key_added + "_membership"]`` holds p(cluster given row), where the model has it.
    model : fitted estimator or Exploration
        What has ``labels_``.
    key_added : str, default="nrprob"
        Under which names. They may be those of an earlier call, whose ``uns[key_added]`` is there,
        and are overwritten then; others that are taken are refused.
    copy : bool, default=False
        Whether ``adata`` stays as it is, and a copy is changed and returned.

    Returns
    -------
    AnnData or None
        The copy, if that was asked for.

    Raises
    ------
    TypeError
        If ``adata`` is no annotated data, or ``model`` is not fitted.
    ValueError
        If they do not have as many rows, or something else has such a name.

    See Also
    --------
    rows_of : rows of annotated data other than its ``X``.

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
            f"model must be one of the rows of adata; got one of {len(labels)} rows for "
            f"{adata.n_obs}; pass the data of the fit"
        )
    import pandas as pd

    columns = {key_added: labels}
    if labels.ndim > 1:
        columns = {f"{key_added}_{r}": column for r, column in enumerate(labels.T, 1)}
    _check_free(adata, key_added, list(columns))
    adata = adata.copy() if copy else adata
    for name, column in columns.items():
        names = [str(cluster) for cluster in range(int(column.max(initial=-1)) + 1)]
        adata.obs[name] = pd.Categorical.from_codes(np.maximum(column, -1), names)
    membership = getattr(model, "membership_", None)
    if isinstance(membership, np.ndarray) and len(membership) == len(labels):
        adata.obsm[f"{key_added}_membership"] = membership
    from nrprob import __version__

    adata.uns[key_added] = {"version": __version__, **_describe_model(model)}
    return adata if copy else None


def _check_free(adata: Any, key: Any, columns: list[str]) -> None:
    """Refuse names that are those of something else than results."""
    if not (isinstance(key, str) and key):
        raise ValueError(
            f"key_added must be a name; got {short_repr(key)}; pass a text that is not empty"
        )
    entry = adata.uns.get(key)
    if isinstance(entry, Mapping) and {"version", "method"} <= entry.keys():
        return
    names = [("obs", name) for name in columns]
    names += [("uns", key), ("obsm", f"{key}_membership")]
    taken = [f"{what}[{short_repr(name)}]" for what, name in names if name in getattr(adata, what)]
    if taken:
        raise ValueError(
            f"key_added must be a free name, or one of earlier results; got {short_repr(key)}, "
            f"and adata has {' and '.join(taken)} already; pass another one"
        )


def _describe_model(model: Any, evidence: Any = None) -> dict[str, Any]:
    """What is said of a fit or of an Exploration, of types that an h5ad file holds."""
    parameters = getattr(model, "params_", {})
    if hasattr(model, "get_params"):
        parameters = model.get_params(deep=False)
    result = {"method": type(model).__name__, "params": _plain_values(parameters)}
    result |= _plain_values({name: getattr(model, name, None) for name in _FOUND})
    if evidence is not None:
        values = {k: v for k, v in vars(evidence).items() if isinstance(v, _PLAIN | np.generic)}
        result["evidence"] = {"summary": str(evidence), **_plain_values(values)}
    if hasattr(model, "evidence_"):
        pairs = itertools.zip_longest(model.estimators_, model.evidence_)
        result["clusterings"] = {str(r): _describe_model(*pair) for r, pair in enumerate(pairs, 1)}
        if model.rejected_ is not None:
            result["rejected"] = _describe_model(*model.rejected_)
    return result


_FOUND = ("objective_", "n_clusters_", "converged_", "reason_")
_PLAIN = bool | int | float | str


def _plain_values(values: dict[str, Any]) -> dict[str, Any]:
    """Values that are there, in types that an h5ad file holds; none has a name that ends in "_"."""
    return {
        name.removesuffix("_"): _plain_value(value)
        for name, value in values.items()
        if value is not None
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    return repr(value)
