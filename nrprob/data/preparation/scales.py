"""Compare the scales of features, and standardise them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from nrprob.data.feature_types import kind_of
from nrprob.data.frames import quote_names
from nrprob.data.logarithms import compare_logarithms, offset_of_logarithm
from nrprob.data.preparation.record import Record

_APART = 10  # minimum ratio of scales that suggests different units
# With log="auto", a column is replaced by its logarithm if its gain exceeds both bounds, in nats.
_LEAST_GAIN_PER_ROW, _LEAST_GAIN = 0.05, 10


class Features(NamedTuple):
    """Numeric features of a table.

    Attributes
    ----------
    names : names of the m columns
    values : (n, m) values in n rows, NaN where missing
    is_number : (m,) mask of the measurements: the columns of kind "number" of a frame whose text
        is kept; otherwise the columns with other values than 0 and 1
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

    The moments are a dictionary from column names to mean and standard deviation. See
    `nrprob.prepare` for ``standardize``. With "auto", measurements are changed only if scales
    differ by a factor of ten, or if measurements and binary columns together would be modelled as
    counts.
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
            # Columns without zeros are rarely counts. An example is an age among many binary
            # columns.
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


def take_logarithms(
    features: Features,
    log: str | Collection[str],
    groups: np.ndarray | None,
    columns_of_table: Collection[str],
    record: Record,
) -> tuple[Features, dict[str, tuple[str, float]]]:
    """Replace columns by their logarithms, as in the argument ``log`` of `nrprob.prepare`.

    ``groups`` (n,) are codes of the known groups, or None. ``columns_of_table`` are the names of
    all columns of the table, which no new name may repeat. Returns the features, and a dictionary
    from the new name of every replaced column to its old name and the number that was added.
    """
    names, values, is_number, _ = features
    wide = values.astype(np.float64)
    if isinstance(log, str):
        gain, offsets = compare_logarithms(wide, groups)
        present = (~np.isnan(wide)).sum(0)
        chosen = is_number & (gain > _LEAST_GAIN_PER_ROW) & (gain * present > _LEAST_GAIN)
        columns = dict(zip(np.flatnonzero(chosen), offsets[chosen], strict=True))
    else:
        positions = _positions(features, [*log])
        columns = {j: _offset_of_column(wide[:, j], names[j]) for j in positions}
    renamed = {}
    logarithms: dict[str, tuple[str, float]] = {}
    for j, offset in columns.items():
        wide[:, j] = np.log(wide[:, j] + offset)
        renamed[names[j]] = f"log({names[j]}{f' + {offset:.4g}' if offset else ''})"
        logarithms[renamed[names[j]]] = names[j], float(offset)
    if renamed:
        why = "which are skewed" if isinstance(log, str) else "as requested"
        record.notes.append(f"logarithms of columns, {why}: {quote_names(renamed)}")
    new_names = [renamed.get(name, name) for name in names]
    if taken := sorted(set(renamed.values()) & {*names, *columns_of_table}):
        raise ValueError(
            f"logarithms need new column names; got a table with a column {taken[0]!r}; rename the "
            "column, or leave it out"
        )
    return features._replace(names=new_names, values=wide.astype(values.dtype)), logarithms


def _positions(features: Features, log: list[str]) -> list[int]:
    """Return the positions of the columns named in ``log``; raise unless they are measurements."""
    for name in log:
        if name not in features.names or not features.is_number[features.names.index(name)]:
            measured = np.array(features.names)[features.is_number].tolist()
            raise ValueError(
                f"log names a column without measurements; got {name!r}, and the columns of "
                f"measurements are {quote_names(measured)}; name one of these"
            )
    return [features.names.index(name) for name in log]


def _offset_of_column(x: np.ndarray, name: str) -> float:
    """Offset a of the logarithm log(x + a) of a column ``x`` (n,) that the user has named."""
    if (low := float(np.nanmin(x))) < 0:
        raise ValueError(
            f"logarithms need values of at least 0; got {low:.4g} in {name!r}; leave the column "
            "out of log, or add a number to it before"
        )
    return offset_of_logarithm(x)


def _describe_scales(
    names: list[str], deviation: np.ndarray, measured: np.ndarray, others: bool
) -> str:
    """Describe the ratio of the largest and the smallest scale; empty if this ratio is below 10.

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
