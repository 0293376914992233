"""Growing lists of records, stored as arrays. Each checkpoint contains a rank's records, and they may be long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_AT = "#at"
"""Suffix of an array that contains the row numbers of a column, if some rows have no value in it."""
_EXTRA = "extra/"


class Columns:
    """Dictionaries of numbers, stored as one array for each key. None values and keys of `extra` may be missing."""

    def __init__(self) -> None:
        self._seen = 0
        self._at: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}

    def arrays(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the arrays. `rows` must be the same list in each call. It may only grow."""
        for number in range(self._seen, len(rows)):
            self._enter(number, rows[number])
        self._seen = len(rows)
        found: dict[str, np.ndarray] = {}
        for key, values in self._values.items():
            found[key] = np.array(values)
            if len(values) < len(rows):
                found[key + _AT] = np.array(self._at[key], dtype=np.int64)
        return found

    def _enter(self, number: int, row: Mapping[str, Any]) -> None:
        flat = {**row, **{_EXTRA + key: value for key, value in row["extra"].items()}}
        for key, value in flat.items():
            if key != "extra" and value is not None:
                self._at.setdefault(key, []).append(number)
                self._values.setdefault(key, []).append(value)

    @staticmethod
    def rows(arrays: Mapping[str, np.ndarray], *missing: str) -> list[dict[str, Any]]:
        """Return the dictionaries again. The keys in `missing` are None where there is no value."""
        columns = {key: array for key, array in arrays.items() if not key.endswith(_AT)}
        count = max((len(array) for array in columns.values()), default=0)
        found: list[dict[str, Any]] = [{**dict.fromkeys(missing), "extra": {}} for _ in range(count)]
        for key, array in columns.items():
            places = arrays[key + _AT].tolist() if key + _AT in arrays else range(count)
            for place, value in zip(places, array.tolist(), strict=True):
                row = found[place]
                if key.startswith(_EXTRA):
                    row["extra"][key.removeprefix(_EXTRA)] = value
                else:
                    row[key] = value
        return found


class Rows:
    """Tuples of numbers of equal length, stored as one array for each position."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._seen = 0
        self._arrays: list[np.ndarray] = []

    def arrays(self, rows: Sequence[tuple[float, ...]]) -> dict[str, np.ndarray]:
        """Return the arrays. `rows` must be the same list in each call. It may only grow."""
        if len(rows) > self._seen:
            new = [np.array(column) for column in zip(*rows[self._seen :], strict=True)]
            old = self._arrays or [column[:0] for column in new]
            self._arrays = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            self._seen = len(rows)
        return dict(zip(self._names, self._arrays, strict=False))

    def rows(self, arrays: Mapping[str, np.ndarray]) -> list[tuple[Any, ...]]:
        """Return the tuples again."""
        columns = [arrays[name].tolist() for name in self._names if name in arrays]
        return list(zip(*columns, strict=True))
