"""Plot of bus bandwidth over size as SVG, with logarithmic axes and one line per algorithm.

Dashes and markers distinguish the lines without colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from paceline.bench.report import Report
from paceline.bench.texts import bandwidth_unit
from paceline.costs.units import format_bytes
from paceline.errors import RunError
from paceline.show import svg

_WIDTH, _HEIGHT = 920, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 700, 82, 474
_MARKERS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",  # circle
    "M-4.2 -4.2h8.4v8.4h-8.4z",  # square
    "M0 -5.4l5.2 9.2h-10.4z",  # triangle
    "M0 -5.8l5.2 5.8l-5.2 5.8l-5.2 -5.8z",  # diamond
    "M0 5.4l5.2 -9.2h-10.4z",  # triangle upside down
    "M-4.4 -4.4l8.8 8.8M4.4 -4.4l-8.8 8.8",  # saltire
    "M-5.4 0h10.8M0 -5.4v10.8",  # plus
    "M-3 -5.2h6l3 5.2l-3 5.2h-6l-3 -5.2z",  # hexagon
)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic scale from values to coordinates."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        span = math.log(self.high / self.low)
        share = math.log(value / self.low) / span if span else 0.5
        return self.start + share * (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    dash: str
    marker: str
    hollow: bool
    points: tuple[tuple[int, float], ...]
    """Bytes, and bandwidth in the unit of the plot."""


def draw(report: Report) -> str:
    """Return the plot of a bench with sizes and at least two workers."""
    unit, scale = bandwidth_unit(report)
    lines = [line for line in _lines(report, scale) if line.points]
    if not lines:
        raise RunError("there is nothing to plot: no call had a correct result and a time above 0")
    sizes = sorted({size for line in lines for size, _ in line.points})
    speeds = [speed for line in lines for _, speed in line.points]
    across = _Axis(sizes[0], sizes[-1], _LEFT + 22, _RIGHT - 22)
    up = _Axis(_round_down(min(speeds)), _round_up(max(speeds)), _BOTTOM, _TOP)
    parts = [*_heading(report, unit), *_across(across, sizes), *_up(up)]
    parts += [part for line in lines for part in _curve(line, across, up)]
    parts += [part for place, line in enumerate(_by_speed(lines)) for part in _key(line, place)]
    return svg.document(_WIDTH, _HEIGHT, f"{_title(report)}: bus bandwidth over size", parts)


def _lines(report: Report, scale: float) -> Iterator[_Line]:
    for place, name in enumerate(report.spec.cases):
        is_baseline = name == report.spec.baseline
        rows = [row for row in report.rows if row.algorithm == name and not row.wrong]
        speeds = ((row.size_bytes, row.busbw_bytes_per_s / scale) for row in rows)
        yield _Line(
            name=name,
            colour=svg.INK if is_baseline else svg.COLOURS[place % len(svg.COLOURS)],
            dash=svg.DASHES[place % len(svg.DASHES)],
            marker=_MARKERS[place % len(_MARKERS)],
            hollow=is_baseline or place >= len(_MARKERS),  # the second set of markers is hollow
            points=tuple((size, speed) for size, speed in speeds if 0 < speed < math.inf),
        )


def _title(report: Report) -> str:
    return f"{report.spec.pattern}, {report.spec.dtype}, {report.where}"


def _heading(report: Report, unit: str) -> Iterator[str]:
    yield svg.text(_LEFT, 34, _title(report), size=18, weight=600)
    how = "predicted" if report.spec.simulated else "measured, median of the calls"
    yield svg.text(_LEFT, 56, f"Bus bandwidth in {unit}, {how}; higher is better", size=13, colour=svg.MUTED)


def _across(axis: _Axis, sizes: Sequence[int]) -> Iterator[str]:
    """Draw the vertical grid at the sizes, as many as can be labelled."""
    every = math.ceil(len(sizes) / 10)
    for size in sizes[::every]:
        x = axis.at(size)
        yield svg.rule(x, _TOP, x, _BOTTOM)
        yield svg.text(x, _BOTTOM + 20, format_bytes(size), anchor="middle", colour=svg.MUTED)
    yield svg.text((_LEFT + _RIGHT) / 2, _BOTTOM + 46, "size of the tensor", size=13, anchor="middle")


def _up(axis: _Axis) -> Iterator[str]:
    """Draw the horizontal grid: 1, 2 and 5 of each decade, or only the decades if there are many."""
    for value in _steps(axis.low, axis.high):
        y = axis.at(value)
        yield svg.rule(_LEFT, y, _RIGHT, y)
        yield svg.text(_LEFT - 10, y + 4, f"{value:g}", anchor="end", colour=svg.MUTED)
    yield svg.rule(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, colour=svg.MUTED)


def _curve(line: _Line, across: _Axis, up: _Axis) -> Iterator[str]:
    places = [(across.at(size), up.at(speed)) for size, speed in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f"<g><title>{escape(line.name)}</title>"
    yield f'<path d="{path}" fill="none" {_stroke(line)}/>'
    for x, y in places:
        yield _marker(line, x, y)
    yield "</g>"


def _key(line: _Line, place: int) -> Iterator[str]:
    y = _TOP + 10 + 26 * place
    yield f'<path d="M{_RIGHT + 22} {y}h44" fill="none" {_stroke(line)}/>'
    yield _marker(line, _RIGHT + 44, y)
    yield svg.text(_RIGHT + 76, y + 4.5, line.name, size=13)


def _by_speed(lines: Sequence[_Line]) -> list[_Line]:
    """Return the lines for the legend, in the order of their right ends."""
    return sorted(lines, key=lambda line: -line.points[-1][1])


def _stroke(line: _Line) -> str:
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    return f'stroke="{line.colour}" stroke-width="2" stroke-linejoin="round"{dash}'


def _marker(line: _Line, x: float, y: float) -> str:
    fill = svg.PAPER if line.hollow else line.colour
    return (
        f'<path d="{line.marker}" transform="translate({x:.1f} {y:.1f})" fill="{fill}" '
        f'stroke="{line.colour}" stroke-width="1.8"/>'
    )


def _steps(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    within = (low * 0.999, high * 1.001)
    fine = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    fine = [value for value in fine if within[0] <= value <= within[1]]
    return fine if len(fine) <= 12 else [v for v in fine if math.isclose(math.log10(v) % 1, 0, abs_tol=1e-9)]


def _round_down(value: float) -> float:
    """Return the largest of 1, 2, 5, 10, 20, … that is not above the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (5, 2, 1) if digit * power <= value * 1.000001)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= value * 0.999999)
