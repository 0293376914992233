"""Line charts of the tutorial as SVG, in the colours of the reports. Lines differ in dashes as well as in colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.show import svg

_WIDTH, _HEIGHT = 830, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 540, 44, 320


class _Axis:
    """A scale from values to coordinates."""

    def __init__(self, values: Sequence[float], start: float, stop: float, *, is_log: bool) -> None:
        low, high = min(values), max(values)
        self.is_log, self.start, self.stop = is_log, start, stop
        self.low, self.high = (low, high) if is_log else (min(low, 0.0), high)
        self.high = self.high if self.high > self.low else self.low + 1

    def at(self, value: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        return self.start + (self._scaled(value) - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits = (1, 2, 5) if len(decades) <= 3 else (1,)
            found = [digit * 10.0**power for power in decades for digit in digits]
        else:
            size = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
            step = next(size * n for n in (1, 2, 5, 10) if (self.high - self.low) / (size * n) <= 6)
            found = [step * n for n in range(math.ceil(self.low / step), int(self.high / step + 1e-9) + 1)]
        return [
            value for value in found if self.low * 0.999 <= value <= self.high * 1.001 or value == self.low
        ]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def draw(data: Mapping[str, Any]) -> str:
    """Return the chart of a figure. `data` has the title, the axes, which of them are logarithmic, and the lines."""
    points = [point for line in data["lines"].values() for point in line]
    across = _Axis([x for x, _ in points], _LEFT, _RIGHT, is_log="x" in data["log"])
    up = _Axis([y for _, y in points], _BOTTOM, _TOP, is_log="y" in data["log"])
    parts = [*_grid(across, up), *_labels(data)]
    for number, (name, line) in enumerate(data["lines"].items()):
        parts += _line(number, name, [(across.at(x), up.at(y)) for x, y in line])
    return svg.document(_WIDTH, _HEIGHT, f"{data['title']}: {data['y']} over {data['x']}", parts)


def _labels(data: Mapping[str, Any]) -> Iterator[str]:
    yield svg.text(24, 26, data["title"], size=16, weight=600)
    yield svg.text((_LEFT + _RIGHT) / 2, _BOTTOM + 44, data["x"], anchor="middle", size=13)
    yield svg.text(_RIGHT + 24, _TOP + 4, data["y"], size=13, colour=svg.MUTED)


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value in across.ticks():
        yield svg.rule(across.at(value), _TOP, across.at(value), _BOTTOM)
        yield svg.text(across.at(value), _BOTTOM + 18, f"{value:g}", anchor="middle", colour=svg.MUTED)
    for value in up.ticks():
        yield svg.rule(_LEFT, up.at(value), _RIGHT, up.at(value))
        yield svg.text(_LEFT - 8, up.at(value) + 4, f"{value:g}", anchor="end", colour=svg.MUTED)


def _line(number: int, name: str, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    colour = svg.COLOURS[number % len(svg.COLOURS)]
    dash = svg.DASHES[number % len(svg.DASHES)]
    look = f'fill="none" stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path d="{path}" {look}/>'
    if len(places) <= 24:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
    y = _TOP + 32 + 22 * number
    yield f'<path d="M{_RIGHT + 24} {y - 4}h26" {look}/>'
    yield svg.text(_RIGHT + 58, y, name, size=12)
