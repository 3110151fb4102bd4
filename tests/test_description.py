"""Descriptions of clusters: means and shares of the samples, whatever holds them."""

import re

import numpy as np
import pandas as pd
import pytest

from nrprob import describe_clusters, prepare


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    cluster, site = rng.integers(2, size=(2, 200))
    frame = pd.DataFrame({"size": rng.normal(50, 5, 200) + 20 * cluster})
    frame["smokes"] = rng.random(200) < 0.2 + 0.6 * cluster
    frame["colour"] = np.array(["red", "blue", "green"])[(cluster + (rng.random(200) < 0.1)) % 3]
    frame["dose"] = rng.normal(size=200) + 9 * site
    frame["site"] = np.array(["a", "b"])[site]
    frame.loc[:20, "size"] = frame.loc[11:40, "colour"] = np.nan
    return frame, np.array(["u", "v"])[cluster]


def test_means_and_shares(table):
    frame, labels = table
    result = describe_clusters(frame, labels, known="site")
    assert list(result) == ["u", "v"]
    inside = frame[labels == "v"]
    size = f"size: {inside['size'].mean():.1f} ({frame['size'].mean():.1f})"
    shares = [100 * rows["smokes"].mean() for rows in (inside, frame)]
    blue = [100 * (rows["colour"].dropna() == "blue").mean() for rows in (inside, frame)]
    parts = result["v"].split("; ")
    assert size in parts and " overall)" in parts[0]
    assert f"smokes: true {shares[0]:.0f} % ({shares[1]:.0f} %)" in parts
    assert any(f"blue {blue[0]:.0f} % ({blue[1]:.0f} %)" in part for part in parts)
    # The known site explains the dose.
    assert "dose" not in result["v"] and len(parts) == 3
    assert describe_clusters(frame, labels, known="site", n_columns=1)["v"] == parts[0]


def test_units_do_not_matter_and_arrays_have_numbers(table):
    frame, labels = table
    scaled = frame.assign(size=1000 * frame["size"])
    first, second = (describe_clusters(f, labels, known="site") for f in (frame, scaled))
    for label in ("u", "v"):
        rest = [re.sub(r"size: [\d.,]+ \([\d.,]+", "", result[label]) for result in (first, second)]
        assert rest[0] == rest[1] != first[label]
    values = describe_clusters(frame[["size", "dose"]].to_numpy(), labels, known=frame["site"])
    assert values["v"].startswith("feature 0: ")
    ready = prepare(frame, known="site")
    assert describe_clusters(ready.X, labels, known=ready.known).keys() == {"u", "v"}


def test_one_cluster_is_refused(table):
    frame, labels = table
    with pytest.raises(ValueError, match="two clusters or more; got 1; pass labels of several"):
        describe_clusters(frame, np.zeros(200, int), known="site")
    with pytest.raises(ValueError, match="one label per row"):
        describe_clusters(frame, labels[1:], known="site")
