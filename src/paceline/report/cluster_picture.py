"""A picture of a cluster: hosts, ranks in use, and how much of a batch each kind of link costs."""

from __future__ import annotations

from collections import Counter
from html import escape

from paceline.planner.bottlenecks import BETWEEN, CARD, INSIDE, LINKS, STRAGGLERS
from paceline.planner.plan import Plan

_MOST_HOSTS, _MOST_RANKS = 6, 16
_HOST, _GAP, _TOP, _RANK = 118, 18, 66, 22
_BUSY = 0.1
"""A link that costs this share of a batch is drawn as busy."""


def cluster_picture(plan: Plan) -> str:
    """Return the picture for the best entry, with a sentence on the links."""
    best, cluster = plan.best, plan.cluster.simulated
    places = cluster.fabric.place(cluster.workers, cluster.workers)
    costs = {each.name: each.share for each in plan.bottlenecks}
    counts = Counter(places)
    hosts = sorted(counts)[:_MOST_HOSTS]
    width = len(hosts) * (_HOST + _GAP) + _GAP
    rows = -(-min(_MOST_RANKS, max(counts.values())) // 4)
    height = _TOP + 34 + rows * (_RANK + 5) + 24
    inside = costs.get(INSIDE, 0.0) if len(counts) > 1 else costs.get(LINKS, 0.0)
    between = max(costs.get(BETWEEN, 0.0), costs.get(CARD, 0.0))
    parts = []
    if len(counts) > 1:
        parts.append(_switch(width, between))
    for number, host in enumerate(hosts):
        ranks = [rank for rank, place in enumerate(places) if place == host]
        x = _GAP + number * (_HOST + _GAP)
        if len(counts) > 1:
            wire = f"M{x + _HOST / 2} {_TOP}V34"
            parts.append(f'<path class="wire{_busy(between)}" d="{wire}"/>')
        parts.append(_host(x, host, ranks, best.workers, dict(cluster.slow), rows, inside))
    words = _words(plan, costs, len(counts))
    left = len(counts) - len(hosts)
    more = f" {left:,} more hosts are not drawn." if left else ""
    picture = (
        f'<svg class="cluster" role="img" aria-label="{escape(words)}" viewBox="0 0 {width} {height}" '
        f'style-width="{width}">{"".join(parts)}</svg>'
    ).replace(f' style-width="{width}"', f' width="{min(width, 860)}"')
    return f'{picture}<p class="note">{escape(words)}{more}</p>'


def _busy(share: float) -> str:
    return " busy" if share >= _BUSY else ""


def _switch(width: int, between: float) -> str:
    return (
        f'<rect class="switch{_busy(between)}" x="{_GAP}" y="14" width="{width - 2 * _GAP}" height="20" rx="4"/>'
        f'<text x="{width / 2}" y="28" text-anchor="middle">network</text>'
    )


def _host(
    x: int, host: int, ranks: list[int], used: int, slow: dict[int, float], rows: int, inside: float
) -> str:
    height = 30 + rows * (_RANK + 5)
    parts = [
        f'<rect class="host{_busy(inside)}" x="{x}" y="{_TOP}" width="{_HOST}" height="{height}" rx="6"/>',
        f'<text x="{x + 8}" y="{_TOP + 18}">host {host}</text>',
    ]
    for number, rank in enumerate(ranks[:_MOST_RANKS]):
        left, top = x + 8 + number % 4 * (_RANK + 5), _TOP + 26 + number // 4 * (_RANK + 5)
        kind = "unused" if rank >= used else "slow" if slow.get(rank, 1.0) > 1 else "used"
        size = f'width="{_RANK}" height="{_RANK}" rx="3"'
        parts.append(
            f'<rect class="{kind}" x="{left}" y="{top}" {size}><title>rank {rank}: {kind}</title></rect>'
        )
    return "".join(parts)


def _words(plan: Plan, costs: dict[str, float], hosts: int) -> str:
    best = plan.best
    text = f"{best.workers} of {plan.cluster.workers} ranks are used, on {best.hosts} of {hosts} hosts."
    named = [name for name in (LINKS, BETWEEN, CARD, INSIDE, STRAGGLERS) if name in costs]
    if not named:
        return f"{text} No link costs more than 0.5 % of a batch."
    listed = ", ".join(f"{name} {costs[name]:.0%}" for name in named)
    return (
        f"{text} Costs, as shares of the time of a batch: {listed}. Links are drawn as busy from {_BUSY:.0%}."
    )
