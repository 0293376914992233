"""The results of a bench: a row for each size and algorithm, the fastest algorithms, and the fitted link."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.spec import Spec
from paceline.costs.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of one algorithm at one size."""

    size_bytes: int
    algorithm: str
    seconds: float
    """Median over the timed calls of the slowest rank's time."""
    fastest_s: float
    slowest_s: float
    repeats: int
    algbw_bytes_per_s: float
    """Bytes of the tensor / seconds."""
    busbw_bytes_per_s: float
    """Bandwidth on the links: comparable between patterns, algorithms and numbers of workers."""
    wrong: int = 0
    """Calls, including warm-up, after which some rank had a wrong result."""
    peer_over_this: float | None = None
    """Time of the baseline / time of this algorithm; None without a baseline. The JSON output uses this name."""


def make_row(spec: Spec, length: int, algorithm: str, times_s: Sequence[float], wrong: int = 0) -> Row:
    """Return the row for the times of one algorithm's calls."""
    seconds = statistics.median(times_s)
    size_bytes = length * spec.itemsize
    # The time may be 0 on an ideal link.
    algbw = size_bytes / seconds if seconds > 0 else math.inf if size_bytes else 0.0
    factor = spec.kind.bus_factor(spec.workers)
    return Row(
        size_bytes=size_bytes,
        algorithm=algorithm,
        seconds=seconds,
        fastest_s=min(times_s),
        slowest_s=max(times_s),
        repeats=len(times_s),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if factor else 0.0,
        wrong=wrong,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The link with the smallest error for the ping-pong times."""

    link: Link
    largest_error: float
    """Largest relative error of a time."""
    size_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Time of one way: half of a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a bench."""

    spec: Spec
    where: str
    rows: tuple[Row, ...]
    """Sorted by size, then in the order of the algorithms, with the baseline last."""
    fit: Fit | None = None
    link: Link | None = None
    """The simulated link; None if measured."""
    mistake: str = ""
    """Description of the first wrong result. Empty if there is none."""
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def winners(self) -> dict[int, str]:
        """The fastest algorithm with correct results at each size. The baseline may win."""
        winners: dict[int, Row] = {}
        for row in self.rows:
            best = winners.get(row.size_bytes)
            if not row.wrong and (best is None or row.seconds < best.seconds):
                winners[row.size_bytes] = row
        return {size: row.algorithm for size, row in winners.items()}

    @property
    def ratios(self) -> dict[str, dict[int, float]]:
        """Time of the baseline / time of the algorithm, by algorithm and size."""
        ratios: dict[str, dict[int, float]] = {}
        for row in self.rows:
            if row.peer_over_this is not None:
                ratios.setdefault(row.algorithm, {})[row.size_bytes] = row.peer_over_this
        return ratios

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        spec = self.spec
        return {
            "pattern": spec.pattern,
            "workers": spec.workers,
            "dtype": spec.dtype,
            "algorithms": list(spec.algorithms),
            "peer": spec.baseline,
            "where": self.where,
            "simulated": spec.simulated,
            "rows": [_finite(dataclasses.asdict(row)) for row in self.rows],
            "winners": {str(size): name for size, name in self.winners.items()},
            "ratios": {
                name: {str(size): ratio for size, ratio in by_size.items()}
                for name, by_size in self.ratios.items()
            },
            "link": None if self.link is None else _link_dict(self.link),
            "fit": None if self.fit is None else _fit_dict(self.fit),
            "left_out": spec.left_out,
            "mistake": self.mistake or None,
            "machine": dict(self.machine),
        }


def _fit_dict(fit: Fit) -> dict[str, Any]:
    points = [{"size_bytes": n, "seconds": s} for n, s in zip(fit.size_bytes, fit.seconds, strict=True)]
    return {**_link_dict(fit.link), "largest_error": fit.largest_error, "points": points}


def _link_dict(link: Link) -> dict[str, float | None]:
    return _finite({"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s})


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity, which JSON does not support, by None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
