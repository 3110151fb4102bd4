"""Posterior of the cluster labels of one table, given pairs, partial labels and distance limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from nrprob.data.frames import extract_known
from nrprob.estimator.pairs import PairEstimator
from nrprob.links import Pairs
from nrprob.methods.mdl.multiview import MDLMultiView
from nrprob.methods.mdl.posterior import ViewPosterior


class SampledPairs(PairEstimator):
    """Base class of clusterers of one table that sample the posterior of the labels."""

    # Parameters of the estimator.
    constraints: str
    features: str
    known_words: str
    labels: str
    random_state: Any
    verbose: Any

    @property
    def _cluster_limit(self) -> int:
        """Largest number of clusters that a fit with the present parameters can have."""
        raise NotImplementedError

    def _hard_pairs(self, task: Any) -> tuple[list[Pairs], list[Pairs]]:
        """Hard must-links and cannot-links of a fit, including pairs that limits or labels imply.

        ``task`` is the validated input of the fit.
        """
        raise NotImplementedError

    def sample_posterior(
        self, X, y=None, *, known=None, must_link=None, cannot_link=None,
        num_samples=1000, num_warmup=500, num_chains=4, thinning=1, random_state=None,
    ) -> ViewPosterior:  # fmt: skip
        r"""Sample the posterior of the labels, :math:`p(z \mid X) \propto \exp(-L)`.

        The description length L is the objective of the fit, with complete codes only. Clusters of
        continuous features have normal distributions; their parameters have conjugate priors and
        are integrated out. Numbers of clusters from 1 to the largest number have equal prior
        probabilities. The result is the posterior of `MDLMultiView` for a single view; see
        `MDLMultiView.sample_posterior` for the priors and the algorithm. The method does not need a
        fit, and does not change a fitted model.

        Parameters
        ----------
        X, y, must_link, cannot_link : as in `fit`
        known : array-like of shape (n_samples,) or (n_samples, n_labelings), optional
            Known groups. Binary features and counts have separate frequencies in every group. With
            continuous features, every group shifts all clusters by an effect, which is sampled.
        num_samples : int, default=1000
            Number of draws of every chain.
        num_warmup : int, default=500
            Number of warm-up iterations of every chain, before the first draw.
        num_chains : int, default=4
            Number of chains, from different initial labels. At most 1000.
        thinning : int, default=1
            Number of iterations from one draw to the next.
        random_state : int, RandomState instance or None, default=None
            Seed; None uses the ``random_state`` of the estimator.

        Returns
        -------
        ViewPosterior
            Draws, counts of moves and diagnostics; the table is view 0.

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if no clustering satisfies the hard constraints.
        ValueError
            If the data do not fit the parameters. The sampler does not support ``epsilon``, limits
            on sizes, or soft constraints together with hard labels, ``delta`` or ``max_diameter``.

        Warns
        -----
        ConvergenceWarning
            If the chains disagree, or if there are too few effective draws.

        Examples
        --------
        >>> import numpy as np
        >>> from nrprob import MDLConstrained
        >>> X = np.repeat([[0.0, 1, 0, 1], [1, 0, 1, 0]], 10, axis=0)
        >>> model = MDLConstrained(2, features="bernoulli", random_state=0)
        >>> posterior = model.sample_posterior(X, must_link=[[0, 1]], num_samples=200)
        >>> posterior.labels().shape
        (4, 200, 20)
        """
        self._check_posterior(y)
        X, known = extract_known(X, known)
        task = clone(self).prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        must, cannot = task.must_link, task.cannot_link
        if self.constraints == "hard":
            hard = self._hard_pairs(task)
            must, cannot = (np.concatenate([pairs.rows for pairs in parts]) for parts in hard)
        # ``n_clusters`` of this class is a largest number. "auto" of `MDLMultiView` includes all
        # numbers up to ``max_clusters``.
        view = MDLMultiView(
            "auto", features=self.features, covariance=task.covariance,
            constraints=self.constraints, known_words=self.known_words,
            max_clusters=self._cluster_limit, random_state=self.random_state, verbose=self.verbose,
        )  # fmt: skip
        return view.sample_posterior(
            [task.X], y if self.labels == "coded" else None, known=known, must_link=must,
            cannot_link=cannot, num_samples=num_samples, num_warmup=num_warmup,
            num_chains=num_chains, thinning=thinning, random_state=random_state,
        )  # fmt: skip

    def _check_posterior(self, y: Any) -> None:
        """Raise ValueError for constraints that `sample_posterior` does not support.

        ``y`` are the partial labels, or None.
        """
        for name in ("epsilon", "min_size", "max_size"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"sample_posterior takes no {name}; got {name}={getattr(self, name)}; set it "
                    "to None, or use fit"
                )
        limits = [name for name in ("delta", "max_diameter") if getattr(self, name) is not None]
        limits += ["labels='hard' with y"] if y is not None and self.labels == "hard" else []
        if self.constraints == "soft" and limits:
            raise ValueError(
                "sample_posterior takes either soft or hard constraints; got constraints='soft' "
                f"and {limits[0]}; use labels='coded' without limits on distances, or "
                "constraints='hard'"
            )
