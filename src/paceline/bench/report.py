"""What a bench found: a row for each size and algorithm, the winners, the link."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.spec import Spec
from paceline.costs.link import Link

__all__ = ["Fit", "Report", "Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One algorithm at one size."""

    size_bytes: int
    algorithm: str
    seconds: float
    """The median, over the timed calls, of the slowest rank's time."""
    fastest_s: float
    slowest_s: float
    repeats: int
    algbw_bytes_per_s: float
    """Bytes of the tensor, over seconds."""
    busbw_bytes_per_s: float
    """What the links carried: comparable between patterns, algorithms and numbers of workers."""
    wrong: int = 0
    """Calls, warm-up included, after which some rank had a wrong result."""
    peer_over_this: float | None = None
    """How many times as long the baseline took. JSON has it under this name."""


def make_row(spec: Spec, length: int, algorithm: str, times_s: Sequence[float], wrong: int = 0) -> Row:
    """The row of the times of one algorithm's calls."""
    ordered = sorted(times_s)
    middle = len(ordered) // 2
    seconds = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    size_bytes = length * spec.itemsize
    # Some things take no time on an ideal link.
    algbw = size_bytes / seconds if seconds > 0 else math.inf if size_bytes else 0.0
    factor = spec.kind.bus_factor(spec.workers)
    return Row(
        size_bytes=size_bytes,
        algorithm=algorithm,
        seconds=seconds,
        fastest_s=ordered[0],
        slowest_s=ordered[-1],
        repeats=len(ordered),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if factor else 0.0,
        wrong=wrong,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The link that explains the ping-pong times best."""

    link: Link
    largest_error: float
    """The share of a time by which the link is off, at worst."""
    size_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """One way: half of a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One bench, done."""

    spec: Spec
    where: str
    rows: tuple[Row, ...]
    """By size, then in the order of the algorithms, the baseline last."""
    fit: Fit | None = None
    link: Link | None = None
    """What was simulated."""
    mistake: str = ""
    """The first wrong result, in words."""
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def winners(self) -> dict[int, str]:
        """The quickest algorithm at each size, among those whose results were right. The baseline may win."""
        winners: dict[int, Row] = {}
        for row in self.rows:
            best = winners.get(row.size_bytes)
            if not row.wrong and (best is None or row.seconds < best.seconds):
                winners[row.size_bytes] = row
        return {size: row.algorithm for size, row in winners.items()}

    @property
    def ratios(self) -> dict[str, dict[int, float]]:
        """How many times as long the baseline took, by algorithm and size."""
        ratios: dict[str, dict[int, float]] = {}
        for row in self.rows:
            if row.peer_over_this is not None:
                ratios.setdefault(row.algorithm, {})[row.size_bytes] = row.peer_over_this
        return ratios

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
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
            "left_out": spec.left_out if spec.simulated else {},
            "mistake": self.mistake or None,
            "machine": dict(self.machine),
        }


def _fit_dict(fit: Fit) -> dict[str, Any]:
    points = [{"size_bytes": n, "seconds": s} for n, s in zip(fit.size_bytes, fit.seconds, strict=True)]
    return {**_link_dict(fit.link), "largest_error": fit.largest_error, "points": points}


def _link_dict(link: Link) -> dict[str, float | None]:
    return _finite({"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s})


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
