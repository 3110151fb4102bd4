"""Export draws to ArviZ.

Draws are arrays with the axes ``(chain, draw, *event)``. ArviZ's converters, which read the draws
of a traced model, do not support discrete states with label switching. Labels are in a separate
group ``partition``: functions of ArviZ summarise the group ``posterior``, and summaries of labels
are meaningless.
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
    """Import ArviZ without its warning about future changes."""
    with warnings.catch_warnings():
        # ArviZ 1.0, which the warning recommends, does not support Python 3.11.
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


# Groups whose arrays start with the axes (chain, draw). The groups in _ALL_DRAWS have equally many
# draws.
_ALL_DRAWS = ("posterior", "partition", "sample_stats", "log_likelihood")
_SAMPLED = (*_ALL_DRAWS, "parameters", "posterior_predictive")


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
    """Return values along a dimension, or with ``kind=str`` names of dimensions, as a list."""
    several = isinstance(values, list | tuple | np.ndarray | range) or hasattr(values, "tolist")
    flat = list(values) if several and np.ndim(as_array(values, name)) == 1 else None
    if flat is None or not all(isinstance(value, kind) for value in flat):
        what = "names of dimensions" if kind is str else "values along a dimension"
        raise TypeError(f"{name} must be a list of {what}; got {short_repr(values)}; pass a list")
    return flat


def _dataset(
    group: str, values: Mapping[str, Any], coords: Mapping[str, Any], dims: Mapping[str, Any]
) -> Any:
    """Make the dataset of an ArviZ group, with ``values``, ``coords`` and ``dims`` by name.

    A DataArray keeps its coordinates and the names of its dimensions.
    """
    import xarray

    batch = ["chain", "draw"] if group in _SAMPLED else []
    arrays = _draws(group, values) if batch else {k: np.asarray(v) for k, v in values.items()}
    result = {}
    for name, array in arrays.items():
        source, n_events = values[name], array.ndim - len(batch)
        events = [str(d) for d in getattr(source, "dims", ()) if d not in batch]
        events = list(dims.get(name, events or [f"{name}_dim_{i}" for i in range(n_events)]))
        if len(events) != n_events:
            raise ValueError(
                f"dims name every event dimension; got {events} for {group}[{name!r}] of shape "
                f"{array.shape}; pass {n_events} names"
            )
        axes = dict(zip([*batch, *events], array.shape, strict=True))
        stored = {k: v.values for k, v in getattr(source, "coords", {}).items() if v.dims == (k,)}
        places = {k: np.arange(axes[k]) for k in batch} | {**stored, **coords}
        for axis in places.keys() & axes.keys():
            if len(places[axis]) != axes[axis]:
                raise ValueError(
                    f"coords have one value for each entry of a dimension; got "
                    f"{len(places[axis])} for {axis!r} of {group}[{name!r}], which has "
                    f"{axes[axis]} entries; pass as many"
                )
        kept_places = {axis: places[axis] for axis in axes if axis in places}
        result[name] = xarray.DataArray(array, kept_places, list(axes))
    return xarray.Dataset(result)


def _container(groups: Mapping[str, Any]) -> Any:
    """Put the datasets of all groups into the container type of the installed ArviZ."""
    import xarray

    arviz = import_arviz()
    if int(arviz.__version__.split(".")[0]) >= 1:
        return xarray.DataTree.from_dict(dict(groups))
    with warnings.catch_warnings():
        # ArviZ accepts groups of other names, and warns of them.
        warnings.filterwarnings("ignore", message=".*not defined in the InferenceData scheme")
        return arviz.InferenceData(**groups)


def to_arviz(
    posterior: Mapping[str, Any],
    *,
    partition: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    sample_stats: Mapping[str, Any] | None = None,
    log_likelihood: Mapping[str, Any] | None = None,
    posterior_predictive: Mapping[str, Any] | None = None,
    observed_data: Mapping[str, Any] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Convert draws to the container type of the installed ArviZ.

    Parameters
    ----------
    posterior : mapping of str to array of shape (chain, draw, ...)
        Draws of quantities that have the same meaning in all draws. ``arviz.summary`` has a row
        for each entry. A DataArray keeps its coordinates and the names of its dimensions.
    partition : mapping of str to array of shape (chain, draw, observation), optional
        Draws of labels, which `nrprob.posterior` summarises.
    parameters : mapping of str to array of shape (chain, draw, ...), optional
        Parameters of components, which have no meaning across draws; they may have fewer draws.
    sample_stats, log_likelihood : mapping of str to array of shape (chain, draw, ...), optional
        Statistics of the sampler, and the pointwise log likelihood in nats. ArviZ assumes
        normalised densities. Predictive probabilities under normalised maximum likelihood are not
        normalised.
    posterior_predictive : mapping of str to array of shape (chain, draw, ...), optional
        Replicated data, under the names of ``observed_data``; they may have fewer draws.
    observed_data : mapping of str to array, optional
        The data; no chain or draw axes. ArviZ pairs them with other groups by name. The dimension
        of the samples must not be called ``sample``, which is a draw for ArviZ.
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
    TypeError
        If an argument is not a mapping, or its coordinates or names are not lists.
    ValueError
        If an array lacks its chain and draw axes, arrays have different numbers of chains or draws,
        or names or coordinates of dimensions do not match an array.

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
        "partition": partition,
        "parameters": parameters,
        "sample_stats": sample_stats,
        "log_likelihood": log_likelihood,
        "posterior_predictive": posterior_predictive,
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
    shapes = {
        f"{group}[{name!r}]": array.shape[:2]
        for group in _ALL_DRAWS
        for name, array in _draws(group, groups_by_name[group]).items()
    }
    if len(set(shapes.values())) > 1:
        raise ValueError(
            "every array has the same number of chains and of draws; "
            + ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
            + "; thin or cut them to one shape"
        )
    places, names = groups_by_name.pop("coords"), groups_by_name.pop("dims")
    places = {name: _one_axis(values, f"coords[{name!r}]") for name, values in places.items()}
    names = {name: _one_axis(values, f"dims[{name!r}]", str) for name, values in names.items()}
    return _container({
        group: _dataset(group, values, places, names)
        for group, values in groups_by_name.items()
        if values or group == "posterior"
    })  # fmt: skip
