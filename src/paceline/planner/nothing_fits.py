"""The error of a plan in which no configuration fits into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.costs.units import format_bytes
from paceline.errors import ConfigurationError
from paceline.planner.entry import Entry

_MOST_FAMILIES = 6


def nothing_fits(entries: Sequence[Entry], refused: Mapping[str, str]) -> ConfigurationError:
    """Return an error that says how much memory each strategy lacks, and what would help."""
    if not entries:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        remedy = "try other strategies or another number of workers"
        return ConfigurationError("strategies", "must be possible for this task and cluster", reasons, remedy)
    least: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda each: each.misses_bytes):
        least.setdefault(entry.family, entry)
    found = list(least.values())
    limit = found[0].prediction.device_bytes or 0
    misses = [f"{entry} lacks {format_bytes(entry.misses_bytes)}" for entry in found[:_MOST_FAMILIES]]
    best = found[0]
    factor = best.prediction.memory_bytes / max(1, limit)
    remedy = (
        f"what helps: ranks with {format_bytes(best.prediction.memory_bytes)}, about {factor:.1f} times as many "
        "workers, smaller batches, or 16-bit parameters"
    )
    bound = f"must fit into {format_bytes(limit)} a rank in some configuration"
    return ConfigurationError("memory", bound, "; ".join(misses), remedy)
