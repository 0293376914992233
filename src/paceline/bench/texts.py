"""The results of a bench as text."""

from __future__ import annotations

import math
from itertools import groupby

from paceline.bench.report import Fit, Report
from paceline.costs.units import format_bandwidth, format_bytes, format_seconds


def bandwidth_unit(report: Report) -> tuple[str, float]:
    """Return one unit for all bandwidths of a report: its name and its bytes per second."""
    speeds = [row.algbw_bytes_per_s for row in report.rows if row.algbw_bytes_per_s < math.inf]
    return ("GB/s", 1e9) if max(speeds, default=0.0) >= 1e9 else ("MB/s", 1e6)


def facts(report: Report) -> dict[str, str]:
    """Return lines by name: the fastest algorithms, the link, the machine, and what was left out."""
    lines = {"fastest": _winners(report)}
    if report.spec.against is not None:
        name, baseline = report.spec.against, report.spec.baseline
        whose = f"{name}'s time" if name == baseline else f"{name}'s time (the rows of {baseline})"
        lines["ratio"] = f"{whose} / ours, in the same run, calls interleaved: above 1 ours is faster"
    if report.fit is not None:
        lines["link"] = _fit(report.fit)
    if report.spec.left_out:
        lines["left out"] = "; ".join(f"{name} ({why})" for name, why in report.spec.left_out.items())
    if report.spec.simulated:
        return lines
    machine = report.machine
    lines["machine"] = f"{machine['cores']} cores, load {machine['load']:g} before, torch {machine['torch']}"
    return lines


def _winners(report: Report) -> str:
    if not report.winners:
        return "none: no result was correct"
    if not report.spec.kind.sized:
        return next(iter(report.winners.values()))
    runs = [
        (name, [size for size, _ in run]) for name, run in groupby(report.winners.items(), lambda w: w[1])
    ]
    return ", ".join(f"{name} {_range(sizes)}" for name, sizes in runs)


def _range(sizes: list[int]) -> str:
    if len(sizes) == 1:
        return f"at {format_bytes(sizes[0])}"
    return f"from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"


def _fit(fit: Fit) -> str:
    link = fit.link
    return (
        f"latency {format_seconds(link.latency_s)}, bandwidth {format_bandwidth(link.bytes_per_s)} "
        f"(ping-pong of ranks 0 and 1; off by {fit.largest_error:.0%} at worst)"
    )
