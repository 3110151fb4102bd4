"""Compare the scales of features, and standardise them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nrprob.data.feature_types import kind_of
from nrprob.data.frames import quote_names
from nrprob.data.preparation.record import Record

_APART = 10  # ratio of scales from which they suggest different units


class Features(NamedTuple):
    """Numeric features of a table.

    Attributes
    ----------
    names : names of the m columns
    values : (n, m) values in n rows, NaN where missing
    is_number : (m,) mask of the columns with other values than 0 and 1
    is_text : (m,) mask of the columns that encode text or booleans, and so are not counts
    """

    names: list[str]
    values: np.ndarray
    is_number: np.ndarray
    is_text: np.ndarray


def standardise_features(
    features: Features, standardize: bool | str, record: Record
) -> tuple[np.ndarray, dict[str, tuple[float, float]]]:
    """Standardise columns, and return the values (n, m) and the moments of changed columns.

    The moments are a dictionary from column names to mean and standard deviation. ``standardize``
    is as in `nrprob.prepare`; with "auto", columns are changed only if their scales differ by a
    factor of ten, or if columns and binary columns together would be modelled as counts.
    """
    names, values, is_number, is_text = features
    wide = values.astype(np.float64)
    if not names:
        return values, {}
    seen = np.ma.masked_invalid(wide) if np.isnan(wide).any() else wide
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = np.asarray(seen.mean(0)), np.asarray(seen.std(0))
    # The tolerance is relative to the values, because the mean of equal values has rounding errors.
    varies = np.isfinite(deviation) & (deviation > 1e-12 * np.asarray(abs(seen).max(0)))
    # If text is kept, columns of few values are discrete, and are not standardised.
    varies &= is_number | (not record.keeps)
    measured = is_number & varies
    chosen = np.zeros(len(names), bool)
    if standardize is True and varies.any():
        chosen = varies
        shown = quote_names([names[j] for j in np.flatnonzero(chosen)])
        record.notes.append(f"standardised, as requested: {shown}")
    kind = "counts" if is_text.all() else kind_of(wide[:, ~is_text])
    if standardize is not True and measured.any() and kind == "counts":
        if (wide[:, is_number] != 0).all():
            # An example is an age among many binary columns. Counts are rarely all positive.
            record.warnings.append(
                "integers are modelled as counts if at least half of all entries are 0; got "
                f"{quote_names(np.array(names)[is_number].tolist())}, without any 0; if these "
                f"are measurements, {record.say('standardize', True)} treats them so"
            )
    elif standardize is not True and measured.any():
        together = not record.keeps
        apart = _describe_scales(names, deviation, measured, together and not is_number.all())
        if standardize == "auto" and (apart or (together and kind_of(wide) != "real")):
            chosen = measured
            why = apart or "they would be modelled as counts, together with binary columns"
            shown = quote_names([names[j] for j in np.flatnonzero(chosen)])
            record.notes.append(f"standardised, since {why}: {shown}")
        elif not standardize and apart:
            record.warnings.append(
                f"features should share a scale; {apart}; "
                f"{record.say('standardize', True)} standardises them"
            )
    scales = {names[j]: (float(mean[j]), float(deviation[j])) for j in np.flatnonzero(chosen)}
    if not scales:
        return values, scales
    wide[:, chosen] = (wide[:, chosen] - mean[chosen]) / deviation[chosen]
    return wide.astype(values.dtype), scales


def _describe_scales(
    names: list[str], deviation: np.ndarray, measured: np.ndarray, others: bool
) -> str:
    """Describe the ratio of the largest and the smallest scale; empty if it is below 10.

    ``deviation`` are the standard deviations of the columns, and ``measured`` masks the columns to
    compare. With ``others``, binary columns count as one more column, of scale 1.
    """
    indices = np.flatnonzero(measured)
    low, high = indices[deviation[indices].argmin()], indices[deviation[indices].argmax()]
    ends = [(deviation[low], repr(names[low])), (deviation[high], repr(names[high]))]
    if others:
        ends.append((1.0, "binary columns"))
    (least, small), (most, large) = min(ends), max(ends)
    if most < _APART * least:
        return ""
    times = most / least
    shown = f"{times:.0f}" if times < 1e5 else f"{times:.0e}"
    return f"scales are {shown}-fold apart, from {small} to {large}"
