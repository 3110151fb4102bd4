"""Parameters of a joint fit as NumPy arrays, and the densities of n samples under them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from nrprob.methods.conditional.discrete_block import Discrete
from nrprob.methods.conditional.joint import JointState
from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.methods.conditional.table_data import TableData
from nrprob.methods.conditional.units import Units


@dataclass(frozen=True)
class FittedTable:
    """Parameters of a joint fit, in the coordinates of the fit.

    Attributes
    ----------
    b : (K, d) centres of K clusters in d numeric columns
    slopes : (s, d) location effects of s design columns, which encode the discrete columns
    m, s : (L, d) posterior means and (L, d, d) covariances of the effects of L known groups
    sigma, t : (d, d) covariance of the errors, and prior covariance of the group effects
    log_share : (L, K) log shares of the clusters by known group
    tables : for every discrete column, log probabilities (L, K, V) of its V values
    data : the table of the fit
    location : whether there are location effects
    discrete : parameters of the discrete block; None without discrete columns
    concentration : (K,) concentration of the Dirichlet prior of shares by group
    by_group : whether shares differ between groups
    """

    b: np.ndarray
    slopes: np.ndarray
    m: np.ndarray
    s: np.ndarray
    sigma: np.ndarray
    t: np.ndarray
    log_share: np.ndarray
    tables: list[np.ndarray]
    data: TableData
    location: bool
    discrete: Discrete | None = None
    concentration: Any = None
    by_group: bool = False

    @classmethod
    def from_state(
        cls, state: JointState, data: TableData, location: bool, by_group: bool = False
    ) -> FittedTable:
        """Extract the parameters of a restart, without padding.

        Parameters
        ----------
        state : final state of the restart
        data : the table of the fit
        location : whether there are location effects
        by_group : whether shares differ between groups
        """
        n_groups = data.n_groups
        k = np.shape(state.shares.log_share)[1]
        d = 0 if data.x is None else data.x.shape[1]
        b, slopes, m = np.zeros((k, 0)), np.zeros((0, 0)), np.zeros((n_groups, 0))
        s, sigma, t = np.zeros((n_groups, 0, 0)), np.zeros((0, 0)), np.zeros((0, 0))
        if state.gaussian is not None:
            gaussian = jax.tree.map(np.asarray, state.gaussian)
            b, slopes, m = gaussian.b[:, :d], gaussian.slopes[:, :d], gaussian.m[:n_groups, :d]
            s = gaussian.s[:n_groups, :d, :d]
            sigma, t = gaussian.sigma[:d, :d], gaussian.t[:d, :d]
        tables, theta = [], None
        if state.discrete is not None:
            theta = jax.tree.map(np.asarray, state.discrete)
            first = 0
            for j, column in enumerate(data.columns):
                where = slice(first, first + column.n_values)
                first += column.n_values
                logits = theta.beta[:, where] + theta.u[:n_groups, None, where]
                if column.scores is not None:
                    slope = theta.slope[:, j] + theta.group_slope[:n_groups, None, j]
                    score = column.standard_scores
                    logits = theta.alpha[where] + slope[..., None] * score
                tables.append(logits - logsumexp(logits, axis=-1, keepdims=True))
        log_share = np.asarray(state.shares.log_share)[:n_groups]
        concentration = np.asarray(state.shares.concentration)
        return cls(
            b, slopes, m, s, sigma, t, log_share, tables, data, location, theta, concentration,
            by_group,
        )  # fmt: skip

    def log_joint(
        self, x: np.ndarray | None, columns: list[DiscreteColumn], groups: np.ndarray,
        *, spread: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Log share plus log density (n, K) of samples under every cluster, given the known group.

        Parameters
        ----------
        x : (n, d) numeric values in the coordinates of the fit, NaN where missing; None without
            numeric columns
        columns : discrete columns
        groups : (n,) known group of every sample
        spread : whether to add the posterior covariance S_z of the group effects to the covariance
            of the errors. The predictive density of new samples needs ``spread=True``.
        """
        value = self.log_share[groups]
        if x is not None:
            value = value + self._log_density(x, columns, groups, spread)
        for column, table in zip(columns, self.tables, strict=True):
            observed = np.flatnonzero(column.codes >= 0)
            codes = column.codes[observed]
            value[observed] += table[groups[observed], :, codes]
        return value

    def _log_density(
        self, x: np.ndarray, columns: list[DiscreteColumn], groups: np.ndarray, spread: bool
    ) -> np.ndarray:
        """Log densities (n, K) of the observed numeric values of samples under every cluster.

        The log density of a sample without an observed numeric value is 0. The arguments are as in
        `log_joint`.
        """
        residual = x - self.m[groups]
        if self.location and self.data.location is not None:
            residual = residual - self.data.location(columns, groups) @ self.slopes
        out = np.zeros((len(x), len(self.b)))
        seen, pattern = np.unique(~np.isnan(x), axis=0, return_inverse=True)
        # Samples with the same missing pattern have the same covariance matrix, and thus the same
        # Cholesky factor. With ``spread``, they must also belong to the same group.
        key = np.column_stack([pattern.reshape(-1), groups if spread else np.zeros_like(groups)])
        cells, cell = np.unique(key, axis=0, return_inverse=True)
        order = np.argsort(cell.reshape(-1), kind="stable")
        edges = np.searchsorted(cell.reshape(-1)[order], np.arange(len(cells) + 1))
        for i, (p, z) in enumerate(cells):
            columns_seen = np.flatnonzero(seen[p])
            rows = order[edges[i] : edges[i + 1]]
            if not columns_seen.size:
                continue
            block = np.ix_(columns_seen, columns_seen)
            covariance = self.sigma[block] + (self.s[z][block] if spread else 0)
            root = np.linalg.cholesky(covariance)
            white = np.linalg.solve(root, residual[rows][:, columns_seen].T).T
            centres = np.linalg.solve(root, self.b[:, columns_seen].T).T
            square = ((white[:, None] - centres) ** 2).sum(2)
            log_det = 2 * np.log(np.diagonal(root)).sum() + len(columns_seen) * np.log(2 * np.pi)
            out[rows] = -0.5 * (square + log_det)
        return out

    def in_units(self, units: Units) -> FittedTable:
        """Convert the parameters from coordinates to units of the numeric columns.

        The origin of the result is ``units.centre``.

        Raises
        ------
        ValueError
            If there are fewer coordinates than columns: the covariance of the columns is then
            singular.
        """
        back = units.back
        if len(back) < back.shape[1]:
            raise ValueError(
                "X must not contain NaN, because the fit projected its columns on "
                f"{len(back)} directions; got missing values in {back.shape[1]} columns; impute "
                "them, or fit with missing values"
            )
        covariances = {name: back.T @ getattr(self, name) @ back for name in ("s", "sigma", "t")}
        locations = {name: getattr(self, name) @ back for name in ("b", "m", "slopes")}
        return replace(self, **covariances, **locations)

    @property
    def overall_shares(self) -> np.ndarray:
        """Shares (K,) of the clusters among all samples."""
        sizes = self.data.group_sizes
        share = np.exp(self.log_share)
        share = share / share.sum(1, keepdims=True)
        return sizes @ share / sizes.sum()

    def average_tables(self) -> list[np.ndarray]:
        """Probabilities (V, K) of the values by cluster, one array per discrete column.

        The probabilities are means over known groups, weighted by group size.
        """
        sizes = self.data.group_sizes
        return [np.einsum("z,zkv->vk", sizes / sizes.sum(), np.exp(t)) for t in self.tables]
