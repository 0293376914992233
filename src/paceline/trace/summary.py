"""Where the time went: seconds and shares of each rank, and waits of ranks for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.costs.units import format_seconds
from paceline.show import markup
from paceline.trace.spans import Spans
from paceline.trace.timeline import Timeline, sweep
from paceline.trace.waits import Straggler, find_waits

PART_NAMES = ("compute", "communicate", "update", "idle", "cancelled", "evaluate", "sleep")
"""Parts of a rank's time. They sum to the run's seconds."""

_ALWAYS_SHOWN = 4  # names that are always shown; other parts are shown if any rank has some
_ROWS_SHOWN = 32
# Report a straggler if it cost this share of the run and this many times the average rank's cost.
_SIGNIFICANT_SHARE = 0.05
_SIGNIFICANT_EXCESS = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSummary:
    """Time of one rank in a run. If spans overlap, each moment counts once: see `timeline.PARTS`."""

    rank: int
    role: str
    host: int
    seconds: float
    compute_s: float
    communicate_s: float
    """Sending and receiving."""
    update_s: float
    idle_s: float
    """Waiting, and time in no span."""
    cancelled_s: float
    evaluate_s: float
    sleep_s: float

    def part_s(self, part: str) -> float:
        """Return the seconds of one of `PART_NAMES`."""
        return float(getattr(self, f"{part}_s"))

    def share(self, part: str) -> float:
        """Return the share of the run's seconds in one of `PART_NAMES`."""
        return self.part_s(part) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Summary:
    """Time of all ranks in a run. Shares are means over the workers, or over all ranks if there are no workers."""

    seconds: float
    ranks: list[RankSummary]
    waits: dict[tuple[int, int], float]
    """Seconds that one rank waited for another: `{(waiter, awaited): seconds}`."""
    stragglers: list[Straggler]
    """Ranks that others waited for while they did not wait themselves, worst first."""
    clock_residual_s: float = 0.0
    """Remaining uncertainty of the clocks of several hosts."""

    @property
    def compute_share(self) -> float:
        return self.share("compute")

    @property
    def communicate_share(self) -> float:
        return self.share("communicate")

    @property
    def update_share(self) -> float:
        return self.share("update")

    @property
    def idle_share(self) -> float:
        return self.share("idle")

    def share(self, part: str) -> float:
        """Return the mean share of one of `PART_NAMES`."""
        counted = [rank for rank in self.ranks if rank.role != "server"] or self.ranks
        return sum(rank.share(part) for rank in counted) / max(1, len(counted))

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, for JSON."""
        waits = [{"waiter": a, "awaited": b, "seconds": s} for (a, b), s in sorted(self.waits.items())]
        return {
            "seconds": self.seconds,
            "clock_residual_s": self.clock_residual_s,
            **{f"{part}_share": self.share(part) for part in PART_NAMES},
            "ranks": [asdict(rank) for rank in self.ranks],
            "waits": waits,
            "stragglers": [straggler._asdict() for straggler in self.stragglers],
        }

    def __repr__(self) -> str:
        shares = ", ".join(f"{part} {self.share(part):.0%}" for part in PART_NAMES[:_ALWAYS_SHOWN])
        return f"<Summary of {len(self.ranks)} ranks, {format_seconds(self.seconds)}: {shares}>"

    def _repr_html_(self) -> str:
        shown, head, *rows = _texts(self, _unit(self.seconds)[1])
        ranks = self.ranks[:_ROWS_SHOWN]
        shares = [[rank.share(part) for part in shown] for rank in ranks]
        picture = markup.bars("shares of the time", [f"rank {each.rank}" for each in ranks], shares, shown)
        return markup.table(head, rows) + picture

    def __str__(self) -> str:
        count = len(self.ranks)
        run = f"{format_seconds(self.seconds)} on {count} rank{'s' if count != 1 else ''}"
        unit, scale = _unit(self.seconds)
        lines = [f"{run}; parts in {unit} and as shares of the run", *_table(self, scale)]
        if count > _ROWS_SHOWN:
            lines.insert(-1, f"… and {count - _ROWS_SHOWN} more ranks")
        straggler = significant_straggler(self)
        if straggler is not None:
            lines.append(f"rank {straggler.rank} made the others wait {format_seconds(straggler.seconds)}")
        if self.clock_residual_s:
            hosts = len({rank.host for rank in self.ranks})
            off = format_seconds(self.clock_residual_s)
            lines.append(f"the clocks of {hosts} host{'s' if hosts != 1 else ''} are one to within {off}")
        return "\n".join(lines)


def significant_straggler(summary: Summary) -> Straggler | None:
    """Return the worst straggler if it is costly and exceptional; else None.

    Every rank is sometimes the last one, by chance.
    """
    if not summary.stragglers:
        return None
    worst = summary.stragglers[0]
    average = sum(straggler.seconds for straggler in summary.stragglers) / len(summary.ranks)
    costly = worst.seconds >= _SIGNIFICANT_SHARE * summary.seconds
    return worst if costly and worst.seconds >= _SIGNIFICANT_EXCESS * average else None


def summarize(spans: Sequence[Spans], seconds: float, clock_residual_s: float = 0.0) -> Summary:
    """Return the summary of a run of `seconds`. Spans outside the run do not count."""
    timelines = {each.rank: sweep(each.array, seconds) for each in spans}
    waits = find_waits(spans, timelines)
    ranks = [_rank_summary(each, timelines[each.rank], seconds) for each in spans]
    return Summary(
        seconds=seconds,
        ranks=ranks,
        waits=waits.pairs,
        stragglers=waits.stragglers,
        clock_residual_s=clock_residual_s,
    )


def _rank_summary(spans: Spans, timeline: Timeline, seconds: float) -> RankSummary:
    # In the order of timeline.PARTS.
    compute, update, cancelled, evaluate, communicate, sleep, wait, nothing = timeline.seconds().tolist()
    return RankSummary(
        rank=spans.rank,
        role=spans.role,
        host=spans.host,
        seconds=seconds,
        compute_s=compute,
        communicate_s=communicate,
        update_s=update,
        idle_s=wait + nothing,
        cancelled_s=cancelled,
        evaluate_s=evaluate,
        sleep_s=sleep,
    )


def _unit(seconds: float) -> tuple[str, float]:
    """Return one unit for a whole table, so that its numbers are comparable."""
    return ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)


def _table(summary: Summary, scale: float) -> list[str]:
    """Return a header, one row per rank, and the mean. Every column is as wide as its widest cell."""
    _, *rows = _texts(summary, scale)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _texts(summary: Summary, scale: float) -> list[list[str]]:
    """Return the parts to show; then a header, one row per rank, and the mean."""
    rare = PART_NAMES[_ALWAYS_SHOWN:]
    shown = [*PART_NAMES[:_ALWAYS_SHOWN], *(p for p in rare if any(r.part_s(p) for r in summary.ranks))]
    rows = [["rank", "role", *shown]]
    for rank in summary.ranks[:_ROWS_SHOWN]:
        cells = [f"{rank.part_s(p) * scale:.3f} {rank.share(p):>6.1%}" for p in shown]
        rows.append([str(rank.rank), rank.role, *cells])
    workers = any(rank.role != "server" for rank in summary.ranks)
    rows.append(["mean", "worker" if workers else "all", *(f"{summary.share(p):.1%}" for p in shown)])
    return [shown, *rows]
