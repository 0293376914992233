"""The trace of a run: every span of every rank."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigurationError
from paceline.trace.chrome import chrome_json
from paceline.trace.spans import SPAN, Spans
from paceline.trace.summary import Summary, summarize

__all__ = ["Trace"]

_ARRAYS = ("seconds", "ranks", "roles", "hosts", "counts", "spans")


@dataclass(frozen=True, slots=True)
class Trace:
    """What each rank did, from 0 to `seconds`. The spans are kept by rank, whatever order they came in."""

    spans: Sequence[Spans]
    seconds: float
    clock_residual_s: float = 0.0
    """By how much the clocks of several hosts may still differ, after their offsets were taken out."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ConfigurationError(
                "seconds", "must be finite and at least 0", self.seconds, "give the run's"
            )
        ordered = tuple(sorted(self.spans, key=lambda each: each.rank))
        ranks = [each.rank for each in ordered]
        if len(set(ranks)) != len(ranks):
            raise ConfigurationError(
                "spans", "must come once from each rank", ranks, "pack each recorder once"
            )
        object.__setattr__(self, "spans", ordered)

    def summary(self) -> Summary:
        """Where the time went."""
        return summarize(self.spans, self.seconds, self.clock_residual_s)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace events, which Perfetto opens; compressed if the name ends in .gz."""
        data = chrome_json(self.spans, self.seconds).encode()
        if Path(path).suffix == ".gz":
            data = gzip.compress(data, mtime=0)  # with the time of day, equal traces would differ
        Path(path).write_bytes(data)

    def draw(self, path: str | os.PathLike[str], *, until_s: float | None = None, title: str = "") -> None:
        """Write an SVG of the first `until_s` seconds (all by default): a lane a rank, messages between them."""
        from paceline.trace.picture import draw

        picture = draw(self.spans, self.seconds if until_s is None else until_s, title=title)
        Path(path).write_text(picture, encoding="utf-8")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The trace as arrays that `numpy.savez` stores without pickle."""
        return {
            "seconds": np.array(self.seconds),
            "clock_residual_s": np.array(self.clock_residual_s),
            "ranks": np.array([each.rank for each in self.spans], dtype=np.int64),
            "roles": np.array([each.role for each in self.spans], dtype=np.str_),
            "hosts": np.array([each.host for each in self.spans], dtype=np.int64),
            "counts": np.array([len(each) for each in self.spans], dtype=np.int64),
            "spans": np.concatenate([np.empty(0, dtype=SPAN), *(each.array for each in self.spans)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Trace:
        """What `to_arrays` gave, or what `numpy.load(…, allow_pickle=False)` opened."""
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise ConfigurationError(
                "arrays", f"must have {', '.join(_ARRAYS)}", sorted(arrays), "save the run again"
            )
        seconds, ranks, roles, hosts, counts, spans = (arrays[name] for name in _ARRAYS)
        if not len(ranks) == len(roles) == len(hosts) == len(counts) or counts.sum() != len(spans):
            sizes = {name: np.shape(arrays[name]) for name in _ARRAYS}
            raise ConfigurationError("arrays", "must belong together", sizes, "save the run again")
        pieces = np.split(spans, np.cumsum(counts)[:-1])
        each = zip(pieces, ranks.tolist(), roles.tolist(), hosts.tolist(), strict=False)
        residual_s = float(arrays["clock_residual_s"]) if "clock_residual_s" in arrays else 0.0
        return cls([Spans(*fields) for fields in each], float(seconds), residual_s)
