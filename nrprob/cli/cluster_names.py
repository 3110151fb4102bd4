"""Names of clusters, from the option --names."""

from __future__ import annotations

import re

from nrprob.cli.options import split_names
from nrprob.cli.terminal import print_note, print_warning
from nrprob.exceptions import InputError

__all__ = ["parse_cluster_names", "report_names", "require_all_names"]


def parse_cluster_names(texts: list[str] | None, n_clusters: int | str | None) -> list[str]:
    """Split the names of clusters in the texts of --names.

    Raises InputError if there are more names than clusters, or for a name such as "cluster 1".
    """
    names = split_names(texts)
    if numbered := [name for name in names if re.fullmatch(r"cluster \d+", name)]:
        raise InputError(
            f"clusters without a name are called by their number; got --names {numbered[0]!r}; "
            "choose another name"
        )
    if isinstance(n_clusters, int) and len(names) > n_clusters:
        raise InputError(
            f"there are more names than clusters; --names {','.join(names)} for {n_clusters} "
            "clusters; leave names out, or raise --k"
        )
    return names


def require_all_names(names: list[str], n_clusters: int | str | None) -> None:
    """Raise InputError if there are some names, but fewer than the number of clusters of --k.

    ``n_clusters`` is the value of --k. Nothing is checked unless it is an integer.
    """
    if isinstance(n_clusters, int) and 0 < len(names) < n_clusters:
        raise InputError(
            f"there are fewer names than clusters; --names {','.join(names)} for {n_clusters} "
            "clusters; name every cluster, or leave --names out"
        )


def report_names(names: list[str], n_clusters: int) -> None:
    """Print how clusters got their names, and a warning if the number of names is wrong."""
    if names:
        pairs = ", ".join(f"{i} is {name!r}" for i, name in enumerate(names[:n_clusters]))
        print_note(
            f"--names are in the order of the clusters of this fit: cluster {pairs}; other options "
            "or rows can change the order, so compare the names with the descriptions"
        )
    if names and len(names) != n_clusters:
        print_warning(
            f"--names has {len(names)} names for {n_clusters} clusters; other clusters keep their "
            "numbers, and further names are not used"
        )
