"""One step in the history of a run."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One step. Also readable as a mapping: `record["loss"]`."""

    step: int
    """Completed updates, including this one."""
    seconds: float
    """Time since the start of the run, without evaluations."""
    loss: float
    """Mean over the samples of this step, before its update.

    NaN without tensor math (math="none"), and if the step had no samples. A step has no samples if a worker that
    updates independently has an empty slice of the batch, or dies during this update.
    """
    metric: float | None
    """The task's metric on its test data; None if it was not evaluated after this step."""
    samples: int
    """Samples used so far, over all workers."""
    bytes: int
    """Bytes sent so far, over all ranks."""
    extra: dict[str, float] = field(default_factory=dict)
    """Other values reported by the strategy or the step."""
    epoch: float | None = None
    """Passes over the data so far: samples used / samples in the data. None in runs that older versions saved."""

    @classmethod
    def of_columns(cls, **columns: Sequence[Any]) -> list[Record]:
        """Return one record per row of a table that has a column for every field.

        Same as calling the class for each row, but much faster: a frozen class sets each field by a function call.
        """
        count = len(columns["step"])
        records = list(map(cls.__new__, itertools.repeat(cls, count)))
        for each in dataclasses.fields(cls):
            set_field = cls.__dict__[each.name].__set__
            # A deque without room consumes the map: it calls `set_field` for each record.
            collections.deque(map(set_field, records, columns[each.name]), maxlen=0)
        return records

    def __getitem__(self, key: str) -> Any:
        if key in self.extra:
            return self.extra[key]
        if key not in self.__slots__:
            raise KeyError(key)
        return getattr(self, key)

    def keys(self) -> Iterator[str]:
        yield from (f.name for f in dataclasses.fields(self) if f.name != "extra")
        yield from self.extra
