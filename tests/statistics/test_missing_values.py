"""Missing values that differ between clusters: the bound holds, and differences are found."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nrprob import ConditionalMixture
from nrprob.statistics.missing_values import missing_p_values, warn_of_missing


def test_the_bound_holds_at_every_level():
    # Shares and missing values both differ between known groups, and clusters are small.
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [60, 30, 10])
    p = []
    for _ in range(4000):
        membership = rng.dirichlet([0.2, 0.02], 100)
        membership[groups == 1] = rng.dirichlet([0.02, 0.3], 30)
        mask = rng.random(100) < np.array([0.05, 0.9, 0.4])[groups]
        p.append(missing_p_values(mask, membership, groups)[0])
    for level in (0.5, 0.1, 0.01):
        assert np.mean(np.array(p) <= level) <= level


def test_a_difference_is_named():
    rng = np.random.default_rng(0)
    cluster = np.arange(300) % 3
    membership = np.eye(3)[cluster] * 0.9 + 0.1 / 3
    missing = {"age": rng.random(300) < 0.2, "dose": rng.random(300) < 0.1 + 0.5 * (cluster == 1)}
    with pytest.warns(UserWarning, match=r"of 'dose' missing in cluster 1 and \d+ % elsewhere"):
        warn_of_missing(missing, membership, np.zeros(300, int))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_missing({"age": missing["age"]}, membership, np.zeros(300, int))
        # The same difference between known groups is not a difference between clusters.
        warn_of_missing(missing, np.eye(3)[cluster], cluster)
        warn_of_missing({"none": np.zeros(300, bool)}, membership, cluster)


@pytest.mark.slow
@pytest.mark.contract
def test_a_fit_warns_where_values_are_missing_by_cluster():
    rng = np.random.default_rng(0)
    hidden = rng.integers(2, size=200)
    frame = pd.DataFrame(rng.normal(size=(200, 3)) + 4 * hidden[:, None], columns=[*"abc"])
    random = frame.mask(rng.random((200, 3)) < 0.1)
    model = ConditionalMixture(2, n_init=4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(random)
    frame.loc[(hidden == 1) & (rng.random(200) < 0.5), "c"] = np.nan
    with pytest.warns(UserWarning, match="got .* of 'c' missing in cluster"):
        model.fit(frame)
