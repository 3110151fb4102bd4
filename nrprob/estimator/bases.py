"""Base clusterers: clusterers that another estimator fits to some rows or to transformed rows.

In this module, ``base`` is such a clusterer.
"""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from nrprob.data.validation import check_choice

_COUNTS = ("n_clusters", "n_components")  # parameter names of the number of clusters


def check_base(base: Any, words: tuple[str, ...], methods: tuple[str, ...], what_for: str) -> None:
    """Raise an error unless ``base`` is one of ``words``, or a clusterer with these methods.

    ``what_for`` describes the task of the clusterer, for the error message.

    Raises
    ------
    ValueError
        If ``base`` is a string that is not among ``words``.
    TypeError
        If ``base`` is a class, or lacks a method.
    """
    if isinstance(base, str):
        check_choice("base", base, words, "or a clusterer")
    elif isinstance(base, type) or not all(hasattr(base, n) for n in (*methods, "get_params")):
        what = f"the class {base.__name__}" if isinstance(base, type) else type(base).__name__
        raise TypeError(
            f"base must be a clusterer that can {what_for}, with {' and '.join(methods)}; got "
            f"{what}; choose one of {', '.join(map(repr, words))}, or pass an instance such as "
            "KMeans() or GaussianMixture()"
        )


def count_name(base: Any) -> str | None:
    """Name of the parameter for the number of clusters; None if ``base`` has no such parameter."""
    parameters = base.get_params(deep=False)
    return next((name for name in _COUNTS if name in parameters), None)


def clone_with_seed(base: Any, seed: int) -> Any:
    """Clone a clusterer, and set ``random_state`` to ``seed`` unless the user set it."""
    copy = clone(base)
    if copy.get_params(deep=False).get("random_state", 0) is None:
        copy.set_params(random_state=seed)
    return copy
