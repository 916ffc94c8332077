"""Results as records: frozen dataclasses that become JSON and CSV, which pandas reads as they are."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from lynxq.container.atomic import replacing


@dataclass(frozen=True)
class Record:
    """Base of results: everything in them is a number, a string, None, or a tuple of numbers."""

    #: Names of properties that are columns, too.
    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Fields and derived values by name, in order; tuples become lists."""
        names = [*(field.name for field in fields(self)), *self.derived]
        values = ((name, getattr(self, name)) for name in names)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def to_json(records: Iterable[Record | Mapping[str, Any]]) -> str:
    """Records as a JSON array of objects: ``pandas.read_json`` makes a row of each.

    Examples
    --------
    >>> from lynxq.lab import results
    >>> print(results.to_json([{"method": "pair", "accepted": [64, 12]}]))
    [
      {"method": "pair", "accepted": [64, 12]}
    ]
    """
    lines = ",\n".join(f"  {json.dumps(_plain(record))}" for record in records)
    return f"[\n{lines}\n]" if lines else "[]"


def to_csv(records: Iterable[Record | Mapping[str, Any]]) -> str:
    """Records as CSV with a line of names: ``pandas.read_csv`` makes a row of each.

    A list is a column for each of its entries, ``name.0``, ``name.1`` and so on. Nothing is rounded; None is empty.

    Examples
    --------
    >>> from lynxq.lab import results
    >>> print(results.to_csv([{"method": "pair", "accepted": [64, 12]}, {"method": "int8", "accepted": [7]}]), end="")
    method,accepted.0,accepted.1
    pair,64,12
    int8,7,
    """
    rows = [_flat(_plain(record)) for record in records]
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: str | os.PathLike[str], records: Iterable[Record | Mapping[str, Any]]) -> None:
    """Write :func:`to_json` to a file, whole or not at all."""
    write(path, to_json(records) + "\n")


def write_csv(path: str | os.PathLike[str], records: Iterable[Record | Mapping[str, Any]]) -> None:
    """Write :func:`to_csv` to a file, whole or not at all."""
    write(path, to_csv(records))


def _plain(record: Record | Mapping[str, Any]) -> Mapping[str, Any]:
    return record.to_dict() if isinstance(record, Record) else record


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, list | tuple):
            flat |= {f"{name}.{index}": entry for index, entry in enumerate(value)}
        else:
            flat[name] = value
    return flat
