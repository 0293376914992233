"""The ranks of a large run that the page shows: individually in lanes, or in groups."""

from __future__ import annotations

from paceline.trace import Summary

MOST_LANES = 64
MOST_GROUPS = 64


def ranks_with_lanes(summary: Summary, most: int = MOST_LANES) -> list[int]:
    """Return all ranks or, if there are more than `most`, a selection.

    Servers, the most awaited ranks and the most idle ranks get at most a quarter each. The rest are evenly spaced.
    """
    ranks = [each.rank for each in summary.ranks]
    if len(ranks) <= most:
        return ranks
    quarter = most // 4
    by_idleness = sorted(summary.ranks, key=lambda each: (-each.idle_s, each.rank))
    chosen = {each.rank for each in summary.ranks if each.role == "server"}
    chosen = set(sorted(chosen)[:quarter])
    chosen |= {straggler.rank for straggler in summary.stragglers[:quarter]}
    chosen |= {each.rank for each in by_idleness[:quarter]}
    others = [rank for rank in ranks if rank not in chosen]
    free = most - len(chosen)
    return sorted(chosen | {others[place * len(others) // free] for place in range(free)})


def group_size(ranks: int) -> int:
    """Return the number of neighbouring ranks in a row of a matrix, for at most `MOST_GROUPS` rows."""
    return max(1, -(-ranks // MOST_GROUPS))


def group_labels(ranks: int) -> list[str]:
    """Return the labels of the rows: "3", or "48-63" for a group."""
    size = group_size(ranks)
    firsts = range(0, ranks, size)
    ends = [min(first + size, ranks) - 1 for first in firsts]
    return [str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, ends, strict=True)]
