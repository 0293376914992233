"""Lists that grow with a run, as arrays: what a rank has written down is kept at every checkpoint, and may be long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Columns", "Rows"]

_AT = "#at"
"""Ends the name of the array that says which rows have a value, where not all have."""
_EXTRA = "extra/"


class Columns:
    """Dictionaries of numbers, as an array for each key. What is None, or in `extra`, may be missing in some."""

    def __init__(self) -> None:
        self._seen = 0
        self._at: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}

    def arrays(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Of the same list each time, which has only become longer."""
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
        """The dictionaries again. `missing`: what is None where there is no value."""
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
    """Tuples of numbers, all of the same length, as an array for each place."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._seen = 0
        self._arrays: list[np.ndarray] = []

    def arrays(self, rows: Sequence[tuple[float, ...]]) -> dict[str, np.ndarray]:
        """Of the same list each time, which has only become longer."""
        if len(rows) > self._seen:
            new = [np.array(column) for column in zip(*rows[self._seen :], strict=True)]
            old = self._arrays or [column[:0] for column in new]
            self._arrays = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            self._seen = len(rows)
        return dict(zip(self._names, self._arrays, strict=False))

    def rows(self, arrays: Mapping[str, np.ndarray]) -> list[tuple[Any, ...]]:
        """The tuples again."""
        columns = [arrays[name].tolist() for name in self._names if name in arrays]
        return list(zip(*columns, strict=True))
