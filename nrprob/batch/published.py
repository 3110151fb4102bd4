"""Read published values, to which model files refer by ids, from CSV files.

The folder ``published`` beside a model file holds CSV files with one printed value per row, and the
columns of `Published`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from nrprob.batch import registry
from nrprob.batch.formats import read_records
from nrprob.batch.measures import Statistic
from nrprob.exceptions import InputError
from nrprob.files import reading, refuse_link

__all__ = ["FOLDER", "GOALS", "Published", "insert_published", "read_published", "select_published"]

FOLDER = "published"  # name of the folder beside the model files
# Goals of printed values, and the directions of measures (`nrprob.batch.measures.Measure`).
GOALS = {"higher": "high", "lower": "low", "agree": "agree", "none": "none"}


@dataclass(frozen=True)
class Published:
    """A value that is printed in a publication.

    Attributes
    ----------
    id : source, table, row, method and column, joined by slashes
    source : name of the publication, with which the names of its model files begin
    table, row, column, method : place of the value in the publication. The column is a measure and
        a statistic, such as "error, mean". Inputs of an experiment have no method
    value : the printed value, or a value that is computed from the printed value
    decimals : number of printed decimals
    goal : "higher" or "lower" if such values are better, "agree" if a value of the same setting
        must be equal, and "none" for inputs, run times and values without a goal
    data : whether the data of the experiment are available
    """

    id: str
    source: str
    table: str
    row: str
    column: str
    method: str
    value: float
    decimals: int
    goal: str
    data: bool

    @property
    def measure(self) -> str:
        """Name of the measure."""
        return self.column.rpartition(", ")[0]

    @property
    def statistic(self) -> str:
        """Statistic of the measure."""
        return self.column.rpartition(", ")[2]


_COLUMNS = [field.name for field in fields(Published)]


def read_published(folder: Path) -> dict[str, Published]:
    """Published values of all CSV files of a folder, by id; empty without such a folder.

    Raises InputError if a file cannot be read, a value is invalid or an id occurs twice.
    """
    refuse_link(folder)
    result: dict[str, Published] = {}
    for path in sorted(folder.glob("*.csv")):
        refuse_link(path)
        with reading(path, "published values", "correct the file"):
            for entry in _read_entries(path):
                if entry.id in result:
                    raise ValueError(f"two rows have the id {entry.id!r}")
                result[entry.id] = entry
    return result


def _read_entries(path: Path) -> Iterator[Published]:
    for number, row in enumerate(read_records(path, _COLUMNS), 2):
        value, decimals = float(row["value"]), int(row["decimals"])
        choices = (row["goal"] in GOALS, row["data"] in ("yes", "no"))
        if math.isnan(value) or not 0 <= decimals <= 15 or not all(choices):
            raise ValueError(f"line {number} has an invalid value")
        values: dict[str, Any] = {
            "value": value,
            "decimals": decimals,
            "data": row["data"] == "yes",
        }
        yield Published(**{**row, **values})


def select_published(
    ids: Sequence[str], published: Mapping[str, Published], where: str
) -> list[Published]:
    """Select published values by ids, or by beginnings of ids up to a slash.

    ``published`` has all values by id. Raises InputError for an entry of ``ids`` that selects
    nothing; ``where`` is its key in the model file.
    """
    result: dict[str, Published] = {}
    for text in ids:
        selected = [p for p in published.values() if f"{p.id}/".startswith(f"{text}/")]
        if not selected:
            nearest = registry.suggest_name(text, _beginnings(text, published))
            raise InputError(f"there is no such published value; {where} = {text!r}; {nearest}")
        result |= {entry.id: entry for entry in selected}
    return [*result.values()]


def _beginnings(text: str, published: Mapping[str, Published]) -> list[str]:
    """List the beginnings of ids of published values that have as many slashes as ``text``."""
    n_parts = text.count("/") + 1
    return [*dict.fromkeys("/".join(name.split("/")[:n_parts]) for name in published)]


def insert_published(
    content: dict[str, Any], folder: Path, measures: Collection[str]
) -> dict[str, Any]:
    """Insert published values into the settings of a model file, which refer to them by ``ids``.

    ``content`` has the contents of the file before the validation, which reports other mistakes.
    Values of measures that are not among ``measures`` are skipped. Values in the file have
    precedence. A value is inserted under the name of its printed method. The value is also inserted
    under the title of every method whose key ``printed`` is the name of the printed method. Raises
    InputError for an unknown id.
    """
    if not any(setting.get("ids") for _, setting in _settings(content)):
        return content
    content, published = copy.deepcopy(content), read_published(folder / FOLDER)
    methods = _tables(content, "methods")
    for where, setting in _settings(content):
        ids, inline = setting.get("ids", []), setting.get("published", {})
        is_list = isinstance(ids, list) and all(isinstance(text, str) for text in ids)
        if not (is_list and isinstance(inline, Mapping)):
            continue
        values: dict[str, Any] = {}
        for entry in select_published(ids, published, f"{where}.ids"):
            if entry.measure not in measures or entry.statistic not in get_args(Statistic):
                continue
            titles = [m.get("title") for m in methods if m.get("printed") == entry.method]
            for title in filter(None, [*titles, entry.method]):
                statistics = values.setdefault(title, {}).setdefault(entry.measure, {})
                statistics[entry.statistic] = entry.value
        setting["published"] = {**values, **inline}
    return content


def _settings(content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings of all report tables of a model file, each after its key."""
    for i, table in enumerate(_tables(content, "tables")):
        for j, setting in enumerate(_tables(table, "settings")):
            yield f"tables.{i}.settings.{j}", setting


def _tables(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """List the dictionaries under the key ``name``; the validation refuses other values later."""
    tables = content.get(name, [])
    return [t for t in tables if isinstance(t, dict)] if isinstance(tables, list) else []
