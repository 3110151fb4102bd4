"""Warnings about a fitted conditional mixture: cluster shares, group sizes, and equal clusters.

Sizes: L known groups, K clusters.
"""

from __future__ import annotations

import numpy as np

from nrprob.estimator.base import Clusterer
from nrprob.exceptions import warn
from nrprob.methods.conditional.joint_fit import (
    EQUAL_CLUSTERS,
    MARGIN_FACTOR,
    SMALL_MEDIAN,
    is_clearer,
    mean_entropy,
    objective_of_common_shares,
    penalty_over_common,
    thresholds,
)
from nrprob.methods.conditional.joint_search import Ends, Form, Problem
from nrprob.methods.conditional.shares import BY_GROUP
from nrprob.methods.conditional.table_data import TableData
from nrprob.statistics.groups import describe_single_groups, shares_differ

# A fit warns if the share of a cluster in a known group differs from its weight by more than this.
_SPREAD = 0.05
_STEPS = 20  # EM steps of the joint fits that estimate the gain over subtracted means


class DiagnosticsMixin(Clusterer):
    """Mixin of `ConditionalMixture` with the warnings about a fit."""

    # Parameters and fitted state of the estimator.
    effects: str
    weights: str
    decisions_: dict[str, float]
    effects_kind_: str
    membership_: np.ndarray
    shares_: np.ndarray
    weights_: np.ndarray
    _shares_by_group: bool
    _shares_differ: bool

    def _warn_groups(
        self, table: np.ndarray, subtracts: str,
        remedy: str = "fit with errors='gaussian', balance=0 and effects='random'",
    ) -> bool:  # fmt: skip
        """Warn of clusters in a single known group, small groups, and shares that differ by group.

        Parameters
        ----------
        table : (L, K) number of samples by known group and cluster
        subtracts : text for the message: the settings that exclude joint fits of group effects and
            clusters, so that effects="auto" subtracts group means; "" if joint fits were possible
        remedy : advice for the message if effects="auto" subtracted group means

        Returns
        -------
        bool
            True if three conditions hold: the user chose effects="subtract", there are several
            known groups and clusters, and the median known group has at least 20 samples.
        """
        self._shares_differ = shares_differ(table)
        sizes = table.sum(1)
        sizes = sizes[sizes > 0]
        several = min(len(sizes), table.shape[1]) > 1
        if message := describe_single_groups(table):
            self._warn_degenerate(message)
        asked = self.effects == "subtract"
        if self.effects_kind_ != "subtract" or not several or not (asked or subtracts):
            return False
        reason = "effects='subtract'" if asked else f"effects='auto', which subtracts {subtracts}"
        remedy = "pass effects='random'" if asked else remedy
        small = bool(np.median(sizes) < SMALL_MEDIAN)
        if small:
            warn(
                f"the median known group has {np.median(sizes):g} samples, so that every sample is "
                f"a large part of its group mean; got {reason}; {remedy} to fit group effects with "
                "the clusters"
            )
        if not asked and self._shares_differ:
            warn(
                "shares of clusters differ between known groups, so group means contain a part of "
                f"the differences between clusters; got {reason}; {remedy} to fit group effects "
                "with the clusters"
            )
        return asked and not small

    def _warn_gain(self, data: TableData, problem: Problem, held: Ends, form: Form) -> None:
        """Warn if a joint fit of group effects and clusters is much better than subtracted means.

        Two joint fits take a few EM steps from the memberships of ``held``. One has common cluster
        shares, and the other has cluster shares by known group.

        Parameters
        ----------
        data : the table
        problem : layout and settings of the fits
        held : the fit with subtracted means
        form : form of the joint fit with common shares
        """
        starts = np.asarray(held.state.r)[None].repeat(2, 0)
        forms = [form, form._replace(shares=BY_GROUP)]
        ends = problem.run(starts, forms, max_iter=_STEPS)
        equal, by_group = ends.objective - float(held.state.objective)
        margin, penalty = thresholds(data, problem.n_clusters)
        # Shares by group need the same gain as with effects="auto"; see `joint_fit.choose_effects`.
        clearer = is_clearer(mean_entropy(problem, held), mean_entropy(problem, ends.pick(1)))
        if clearer:
            common = objective_of_common_shares(problem, ends.pick(1), form, _STEPS)
            more = penalty_over_common(penalty, problem.n_clusters, data.total)
            clearer = ends.objective[1] - common > more
        differs = clearer and by_group > MARGIN_FACTOR * margin + penalty
        if differs or equal > MARGIN_FACTOR * margin:
            self._shares_differ = True
            gain = max(equal, by_group)
            warn(
                "a joint fit of group effects and clusters gains "
                f"{gain:.0f} nats over subtracted group means, which contain a part of the "
                "differences between clusters if cluster shares differ between groups; got "
                "effects='subtract'; compare with effects='auto'"
            )

    def _warn_equal_clusters(self, entropy: float) -> None:
        """Warn if the memberships of most samples are nearly equal for all clusters.

        ``entropy`` is the mean entropy of the memberships divided by log K, from 0 to 1.
        """
        if entropy > EQUAL_CLUSTERS:
            self._warn_degenerate(
                "the clusters are nearly equal; got memberships with a mean entropy of "
                f"{entropy:.2f} log(n_clusters); lower n_clusters, or pass other features"
            )

    def _warn_shares(self, gains: dict[str, float]) -> None:
        """Warn if a fit with cluster shares by known group is much better, but was not selected.

        The fit also has to be better than a fit with common shares, because unequal common shares
        suffice for clusters of different sizes. ``gains`` are the gains and thresholds in nats that
        `joint_fit.choose_effects` returns.
        """
        enough = gains["gain_by_group"] > 1.5 * gains["margin"] + gains["shares_penalty"]
        enough &= gains["gain_over_common"] > gains["penalty_over_common"]
        if enough and self.weights == "auto":
            warn(
                "a fit with cluster shares by known group gains "
                f"{gains['gain_by_group']:.0f} nats, but its memberships are not clearer; got "
                "weights='auto', which did not select this fit; pass weights='by_group' if cluster "
                "shares can differ between your groups"
            )

    def _warn_joint(self) -> None:
        """Warn if effects="auto" selected a joint fit with cluster shares that differ by group."""
        if self.effects_kind_ == "subtract":
            return
        if self.effects == "auto" and "gain_by_group" in self.decisions_ and len(self.shares_) > 1:
            spread = np.abs(self.shares_ - self.weights_).max()
            gain = self.decisions_["gain_by_group"]
            if self._shares_by_group and spread > _SPREAD:
                warn(
                    f"shares of clusters differ between known groups (gain {gain:.0f} nats), so "
                    "group effects were fitted with the clusters; got effects='auto'; see shares_, "
                    "or pass effects='subtract' to subtract group means"
                )
