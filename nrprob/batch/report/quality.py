"""Table of quality versus computing time per method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from nrprob.batch.report.averages import OF, Value, summarize
from nrprob.batch.report.results import Results, kinds

__all__ = ["Quality", "quality"]


@dataclass(frozen=True)
class Quality:
    """One method, or one of its settings on one kind of data.

    Attributes
    ----------
    method, setting : what was fitted; the setting is empty for all of them
    n_fits : number of fits that are done
    means : measure -> mean over data sets and settings; None where no fit has it
    seconds : median over the fits
    """

    method: str
    setting: str
    n_fits: int
    means: Mapping[str, Value | None]
    seconds: float


def quality(results: Results) -> tuple[list[Quality], list[Quality]]:
    """Means of all measures and the median time, the fastest first: by method, and by setting."""
    measures = [name for name in results.comparable if name not in results.model.built_in]

    def of(method: str, setting: str, fits: pd.DataFrame) -> Quality:
        done = fits[fits["done"]]
        means = {name: summarize(done, name, "mean") for name in measures}
        return Quality(method, setting, len(done), means, float(done[OF + "seconds"].median()))

    methods = [of(name, "", f) for name, f in results.frame.groupby("method", sort=False)]
    settings = [
        of(method, ", ".join(filter(None, [data, chosen])), fits)
        for data, method, chosen, fits in kinds(results)
    ]
    return _fastest_first(methods), _fastest_first(settings)


def _fastest_first(result: list[Quality]) -> list[Quality]:
    return sorted((one for one in result if one.n_fits), key=lambda one: one.seconds)
