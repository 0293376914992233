"""Plot of a partition as SVG: one bar for each client, with one coloured segment for each label.

The length of a bar is the number of samples. Labels are in the same order in every bar, and are written into the bars
if there is room, so that they can be read without colours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from html import escape

import numpy as np

from paceline.data.partitions.facts import Facts
from paceline.errors import ConfigurationError
from paceline.show import svg

_LEFT, _RIGHT, _TOP, _MARGIN = 78, 820, 118, 40
_HEIGHT = 640  # height of all bars together, unless bars would be too thick or too thin
_THINNEST, _THICKEST, _SMALLEST_LABELLED = 3.0, 26.0, 16.0
_MOST_CLIENTS, _MOST_LABELS = 1_000, 32
_STRIPES = ("", "stripes-down", "stripes-up", "dots")  # patterns over the colours when the colours repeat


def check_drawable(clients: int, labels: int) -> None:
    """Raise if there are too many clients or labels for a readable plot."""
    if clients > _MOST_CLIENTS or labels > _MOST_LABELS:
        bound = f"can show at most {_MOST_CLIENTS:,} clients and {_MOST_LABELS} labels"
        raise ConfigurationError("plot", bound, f"{clients:,} and {labels:,}", "use fewer")


def draw(facts: Facts, title: str) -> str:
    """Return the plot of a partition as SVG."""
    check_drawable(facts.clients, len(facts.labels))
    pitch = min(_THICKEST, max(_THINNEST, _HEIGHT / facts.clients))
    bottom = _TOP + pitch * facts.clients
    scale = (_RIGHT - _LEFT) / max(1, int(facts.sizes.max()))
    parts = [_patterns(), *_heading(facts, title), *_axis(int(facts.sizes.max()), scale, bottom)]
    for client in range(facts.clients):
        parts += _bar(facts, client, _TOP + pitch * client, pitch, scale)
    parts += [part for place in range(len(facts.labels)) for part in _key(facts, place)]
    key_bottom = _TOP + 22 * len(facts.labels)
    return svg.document(_RIGHT + 110, round(max(bottom + 60, key_bottom + _MARGIN)), title, parts)


def _heading(facts: Facts, title: str) -> Iterator[str]:
    yield svg.text(_LEFT, 34, title, size=18, weight=600)
    sizes = facts.sizes
    words = f"{facts.partition}; {sizes.min():,} to {sizes.max():,} samples a client"
    if facts.empty:
        words += f", {len(facts.empty)} without any"
    yield svg.text(_LEFT, 56, words, size=13, colour=svg.MUTED)
    if facts.labels:
        words = f"mean distance of a client's labels from all labels: {facts.skew:.2f} (0 equal, 1 disjoint)"
        yield svg.text(_LEFT, 74, words, size=13, colour=svg.MUTED)


def _axis(longest: int, scale: float, bottom: float) -> Iterator[str]:
    for value in _ticks(longest):
        x = _LEFT + value * scale
        yield svg.rule(x, _TOP - 6, x, bottom)
        if value:  # the word "client" is at the position of 0
            yield svg.text(x, _TOP - 12, f"{value:,}", anchor="middle", colour=svg.MUTED)
    yield svg.text((_LEFT + _RIGHT) / 2, bottom + 28, "samples", size=13, anchor="middle")
    yield svg.text(_LEFT - 10, _TOP - 12, "client", anchor="end", colour=svg.MUTED)


def _ticks(longest: int) -> list[int]:
    """Return about five round numbers, from 0."""
    rough = max(1.0, longest / 5)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(int(digit * power) for digit in (1, 2, 5, 10) if digit * power >= rough)
    return list(range(0, longest + 1, max(1, step)))


def _bar(facts: Facts, client: int, y: float, pitch: float, scale: float) -> Iterator[str]:
    every = math.ceil(12 / pitch)  # label only as many clients as there is room for
    if client % every == 0:
        middle = y + pitch / 2 + 4
        yield svg.text(_LEFT - 10, middle, str(client), size=11, anchor="end", colour=svg.MUTED)
    ends = [0, *np.cumsum(facts.counts[client]).tolist()]
    for place, (start, stop) in enumerate(itertools.pairwise(ends)):
        if stop > start:
            yield from _segment(facts, client, place, (start, stop), (y, pitch), scale)


def _segment(
    facts: Facts, client: int, place: int, span: tuple[int, int], row: tuple[float, float], scale: float
) -> Iterator[str]:
    (start, stop), (y, pitch) = span, row
    x, width = _LEFT + start * scale, (stop - start) * scale
    gap = 0.8 if pitch > 6 else 0.0
    name = f"label {facts.labels[place]}, " if facts.labels else ""
    tip = escape(f"client {client}: {name}{stop - start} samples")
    yield f"<g><title>{tip}</title>"
    yield from _swatch(place, x, y + gap, max(width - gap, 0.4), pitch - 2 * gap)
    if facts.labels and pitch >= _SMALLEST_LABELLED:
        yield from _label(str(facts.labels[place]), x + width / 2, y + pitch / 2, width - 6)
    yield "</g>"


def _label(words: str, x: float, y: float, room: float) -> Iterator[str]:
    """Draw the label on its own background, because neither black nor white text is readable on every colour."""
    width = 7.5 * len(words) + 4
    if width <= room:
        box = f'x="{x - width / 2:.1f}" y="{y - 7:.1f}" width="{width:.1f}" height="14" rx="3"'
        yield f'<rect {box} fill="{svg.PAPER}"/>'
        yield svg.text(x, y + 4, words, size=11, weight=600, anchor="middle")


def _swatch(place: int, x: float, y: float, width: float, height: float) -> Iterator[str]:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    yield f'<rect {box} fill="{svg.COLOURS[place % len(svg.COLOURS)]}"/>'
    stripes = _STRIPES[place // len(svg.COLOURS)]
    if stripes:
        yield f'<rect {box} fill="url(#{stripes})"/>'


def _key(facts: Facts, place: int) -> Iterator[str]:
    y = _TOP + 22 * place
    yield from _swatch(place, _RIGHT + 30, y, 26, 14)
    yield svg.text(_RIGHT + 64, y + 11.5, str(facts.labels[place]), size=12)


def _patterns() -> str:
    paint = f'stroke="{svg.PAPER}" stroke-width="1.6"'
    down, up = "M-1 -1L7 7M-1 5L1 7M5 -1L7 1", "M-1 7L7 -1M-1 1L1 -1M5 7L7 5"
    dots = f'<circle cx="3" cy="3" r="1.3" fill="{svg.PAPER}"/>'
    shapes = (f'<path d="{down}" {paint}/>', f'<path d="{up}" {paint}/>', dots)
    named = zip(_STRIPES[1:], shapes, strict=True)
    size = 'width="6" height="6" patternUnits="userSpaceOnUse"'
    return "<defs>" + "".join(f'<pattern id="{n}" {size}>{s}</pattern>' for n, s in named) + "</defs>"
