"""A topology as an SVG: peers as discs, edges as lines, with arrows if directed, and one colour per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.facts import Facts
from paceline.schedules.topologies.graph import Floats
from paceline.schedules.topologies.layout import DrawnEdge, Layout, lay_out
from paceline.schedules.topologies.topology import Topology
from paceline.show import svg

_MARGIN, _TOP, _BOX, _KEY = 48, 104, 620, 120
_MOST_PEERS, _MOST_EDGES = 2_000, 20_000
_SMALLEST_LABELLED = 7.0


def check_drawable(topology: Topology) -> None:
    """Raise an error if the picture would be too dense to read."""
    edges = sum(len(topology.edges(step)) for step in range(topology.period))
    if topology.peers > _MOST_PEERS or edges > _MOST_EDGES:
        bound = f"can show at most {_MOST_PEERS:,} peers and {_MOST_EDGES:,} edges"
        raise ConfigurationError("plot", bound, f"{topology.peers:,} and {edges:,}", "use a smaller topology")


def draw(topology: Topology, facts: Facts) -> str:
    """Return the picture as SVG, with the key figures in the heading."""
    check_drawable(topology)
    layout = lay_out(topology, _BOX)
    parts = [*_heading(facts), f'<g transform="translate({_MARGIN} {_TOP})">']
    for step in range(topology.period):
        lines = list(layout.lines(topology.edges(step)))
        parts += _edges(lines, step, layout, topology)
    parts += [*_peers(layout), "</g>"]
    if topology.period > 1:
        parts += [part for step in range(topology.period) for part in _key(step, topology.period)]
    width = 2 * _MARGIN + _BOX + _KEY * (topology.period > 1)
    height = _TOP + max(layout.height, 24 * topology.period * (topology.period > 1)) + _MARGIN
    return svg.document(width, round(height), f"{facts.topology} of {facts.peers} peers", parts)


def _heading(facts: Facts) -> Iterator[str]:
    yield svg.text(_MARGIN, 36, f"{facts.topology}, {facts.peers} peers", size=18, weight=600)
    steps = "no consensus"
    if (count := facts.steps_to_consensus) is not None:
        steps = f"{count} step{'s' * (count != 1)} until the distance is a thousandth"
    gap = f"spectral gap {facts.spectral_gap:.4g}" + (" a period" if facts.period > 1 else "")
    words = f"degree {facts.degree}, {gap}, {steps}"
    yield svg.text(_MARGIN, 58, words, size=13, colour=svg.MUTED)


def _edges(lines: Sequence[DrawnEdge], step: int, layout: Layout, topology: Topology) -> Iterator[str]:
    """Yield one path for all lines of a step, and one for all arrowheads."""
    colour, dash = _looks(step, topology.period)
    width = float(np.clip(60 / max(len(lines), 1), 0.5, 1.6))
    opacity = float(np.clip(500 / max(len(lines), 1), 0.3, 1))
    path = "".join(_curve(line) for line in lines)
    stroke = f'stroke="{colour}" stroke-width="{width:.2g}" stroke-opacity="{opacity:.2g}"{dash}'
    yield f'<path d="{path}" fill="none" {stroke}/>'
    if topology.directed:
        heads = "".join(head for line in lines for head in _heads(line, layout.radius))
        yield f'<path d="{heads}" fill="{colour}"/>'


def _peers(layout: Layout) -> Iterator[str]:
    for rank, (x, y) in enumerate(layout.places):
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{layout.radius:.1f}" fill="{svg.COLOURS[0]}" '
            f'stroke="{svg.PAPER}"><title>peer {rank}</title></circle>'
        )
        if layout.radius >= _SMALLEST_LABELLED:
            size = min(13.0, 0.95 * layout.radius)
            yield svg.text(x, y + 0.36 * size, str(rank), size=size, anchor="middle", colour=svg.PAPER)


def _key(step: int, period: int) -> Iterator[str]:
    colour, dash = _looks(step, period)
    x, y = _MARGIN + _BOX + 28, _TOP + 24 * step
    yield f'<path d="M{x} {y}h36" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'
    yield svg.text(x + 46, y + 4.5, f"step {step}", size=13)


def _looks(step: int, period: int) -> tuple[str, str]:
    if period == 1:
        return svg.MUTED, ""
    dash = svg.DASHES[step % len(svg.DASHES)]
    return svg.COLOURS[step % len(svg.COLOURS)], f' stroke-dasharray="{dash}"' if dash else ""


def _curve(line: DrawnEdge) -> str:
    start, bend, end = (f"{x:.1f} {y:.1f}" for x, y in (line.start, line.bend, line.end))
    is_straight = np.allclose(line.bend, (line.start + line.end) / 2)
    return f"M{start}L{end}" if is_straight else f"M{start}Q{bend} {end}"


def _heads(line: DrawnEdge, radius: float) -> Iterator[str]:
    yield _head(line.bend, line.end, radius)
    if line.both_ways:
        yield _head(line.bend, line.start, radius)


def _head(origin: Floats, peer: Floats, radius: float) -> str:
    """Return a triangle that touches the peer's disc."""
    along = (peer - origin) / max(float(np.linalg.norm(peer - origin)), 1e-9)
    aside = np.array([-along[1], along[0]])
    size = max(4.0, 0.55 * radius)
    tip = peer - along * (radius + 0.5)
    corners = (tip, tip - along * size + aside * size / 2.4, tip - along * size - aside * size / 2.4)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "z"
