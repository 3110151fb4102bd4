"""Export draws to ArviZ.

Draws are plain arrays named ``(chain, draw, *event)``. They are not extracted from a traced model,
because samplers over partitions have discrete states with label switching, which ArviZ's converters
do not support.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nrprob.data.validation import as_array
from nrprob.exceptions import short_repr
from nrprob.posterior.draws import by_dims

__all__ = ["to_arviz"]


def import_arviz() -> Any:
    """ArviZ, without its notice of future changes."""
    with warnings.catch_warnings():
        # Python 3.11 supports ArviZ 0.23 only, so its notice about 1.0 has no remedy here.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        try:
            try:
                import arviz
            except FileNotFoundError:
                # Before 1.0 the first import of a day replaces a file, which another process may
                # remove at the same time.
                import arviz
        except ImportError as error:  # a broken or removed installation: arviz is a dependency
            raise ImportError(
                f"to_arviz needs ArviZ, which could not be imported; {error}; "
                "run pip install 'arviz>=0.23'"
            ) from error
    return arviz


def _draws(group: str, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {name: by_dims(value, f"{group}[{name!r}]") for name, value in values.items()}
    for name, array in arrays.items():
        if array.ndim < 2 or "chain" not in getattr(values[name], "dims", ["chain"]):
            raise ValueError(
                f"arrays of {group} start with the axes (chain, draw); {name!r} has shape "
                f"{array.shape}; add the missing axis, as in x[None] for a single chain"
            )
    return arrays


def _one_axis(values: Any, name: str, kind: type = object) -> list[Any]:
    """Values along an axis, or names of axes, as a list."""
    several = isinstance(values, list | tuple | np.ndarray | range) or hasattr(values, "tolist")
    flat = list(values) if several and np.ndim(as_array(values, name)) == 1 else None
    if flat is None or not all(isinstance(value, kind) for value in flat):
        what = "names of dimensions" if kind is str else "values along a dimension"
        raise TypeError(f"{name} must be a list of {what}; got {short_repr(values)}; pass a list")
    return flat


def to_arviz(
    posterior: Mapping[str, Any],
    *,
    sample_stats: Mapping[str, Any] | None = None,
    log_likelihood: Mapping[str, Any] | None = None,
    observed_data: Mapping[str, Any] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Draws in the container type of the installed ArviZ.

    Parameters
    ----------
    posterior : mapping of str to array of shape (chain, draw, ...)
        Draws of each quantity.
    sample_stats, log_likelihood : mapping of str to array of shape (chain, draw, ...), optional
        Statistics of the sampler, and the pointwise log likelihood in nats. ArviZ assumes
        normalised densities, which predictive probabilities under normalised maximum likelihood are
        not.
    observed_data : mapping of str to array, optional
        The data; no chain or draw axes.
    coords : mapping of str to sequence, optional
        Values along named dimensions.
    dims : mapping of str to sequence of str, optional
        Names of the event dimensions of each quantity.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        InferenceData for ArviZ before 1.0, DataTree from 1.0 on. Functions of the same ArviZ
        (``arviz.summary``, ``arviz.rhat``, ...) accept it.

    Raises
    ------
    ValueError
        If an array lacks its chain and draw axes, or two arrays differ in their length.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.posterior import to_arviz
    >>> draws = np.random.default_rng(0).normal(size=(4, 100, 3))
    >>> data = to_arviz({"weight": draws}, dims={"weight": ["cluster"]})
    >>> data.posterior["weight"].dims
    ('chain', 'draw', 'cluster')
    """
    groups_by_name: dict[str, Any] = {
        "posterior": posterior,
        "sample_stats": sample_stats,
        "log_likelihood": log_likelihood,
        "observed_data": observed_data,
        "coords": coords,
        "dims": dims,
    }
    for name, value in groups_by_name.items():
        if value is None and name != "posterior":
            groups_by_name[name] = {}
        elif not isinstance(value, Mapping):
            raise TypeError(
                f"{name} must be a mapping from names; got {type(value).__name__}; pass a dict"
            )
    groups = {
        name: _draws(name, groups_by_name[name])
        for name in ("posterior", "sample_stats", "log_likelihood")
    }
    shapes = {
        f"{group}[{name!r}]": array.shape[:2]
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }
    if len(set(shapes.values())) > 1:
        raise ValueError(
            "every array has the same number of chains and of draws; "
            + ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
            + "; thin or cut them to one shape"
        )
    groups["observed_data"] = {k: np.asarray(v) for k, v in groups_by_name["observed_data"].items()}
    groups = {group: arrays for group, arrays in groups.items() if arrays}
    labels: dict[str, Any] = {
        "coords": {name: _one_axis(values, f"coords[{name!r}]") for name, values in
                   groups_by_name["coords"].items()},
        "dims": {name: _one_axis(names, f"dims[{name!r}]", str) for name, names in
                 groups_by_name["dims"].items()},
    }  # fmt: skip

    arviz = import_arviz()
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**groups, **labels)
    with warnings.catch_warnings():
        # Samples are rows of the data here, while ArviZ uses this word for draws of all chains.
        warnings.filterwarnings("ignore", message="Found dimension named 'sample'")
        return arviz.from_dict(groups, **labels)
