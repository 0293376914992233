"""The pictures of a plan page as SVG. Colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from paceline.costs.units import format_bytes, format_seconds
from paceline.planner.check import Check
from paceline.planner.entry import Entry
from paceline.planner.explain import PARTS
from paceline.planner.plan import Plan
from paceline.planner.plan_table import money

Form = Callable[[float], str]
"""The text of a value."""

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 540, 16, 254
_BARS = 12
_PAYS = 1.1
"""More workers pay if twice as many make a batch this many times as fast."""


def stacked_bars(entries: Sequence[Entry]) -> str:
    """Return a bar for each of the best entries, divided into the parts of a batch."""
    shown = entries[:_BARS]
    longest_s = max((entry.batch_seconds for entry in shown), default=1.0)
    rows = "".join(_bar(entry, longest_s) for entry in shown)
    key = "".join(
        f'<span><svg aria-hidden="true" width="14" height="11"><rect class="part-{part}" width="14" height="11"/>'
        f"</svg>{part}</span>"
        for part in PARTS
    )
    return f'<p class="key">{key}</p><table class="bars"><tbody>{rows}</tbody></table>'


def _bar(entry: Entry, longest_s: float) -> str:
    scale = entry.batch_seconds / entry.prediction.step_seconds
    x, rects, words = 0.0, [], []
    for part in PARTS:
        seconds = max(0.0, getattr(entry.prediction.parts, part) * scale)
        width = 100 * seconds / longest_s
        rects.append(f'<rect class="part-{part}" x="{x:.2f}%" width="{width:.2f}%" height="14"/>')
        words.append(f"{part} {format_seconds(seconds)}")
        x += width
    label = escape(", ".join(words))
    svg = f'<svg role="img" aria-label="{label}" width="100%" height="14"><title>{label}</title>{"".join(rects)}</svg>'
    name, time = breakable(str(entry)), escape(format_seconds(entry.batch_seconds))
    return f'<tr><th scope="row">{name}</th><td>{svg}</td><td>{time}</td></tr>'


def breakable(spec: str) -> str:
    """Return a spec as markup that may wrap between its parameters, and after their names."""
    text = escape(spec)
    for sign in ":,=":
        text = text.replace(sign, f"{sign}<wbr>")
    return text


@dataclass(frozen=True, slots=True)
class _Point:
    x: float
    y: float
    name: str
    kind: str = "tried"


def frontier(entries: Sequence[Entry], best: Entry, what: str) -> str:
    """Return the time of a batch against "memory" or "cost", with a line through entries that nothing beats in both."""
    money_or_bytes: Form = money if what == "cost" else format_bytes
    points = []
    for entry in entries:
        across = entry.cost if what == "cost" else float(entry.prediction.memory_bytes)
        if across is not None:
            kind = "best" if entry is best else "tried"
            points.append(_Point(across, entry.seconds, str(entry), kind))
    line = _pareto(points)
    words = f"{len(line)} of {len(points)} configurations are on the frontier: " + "; ".join(
        f"{p.name}: {money_or_bytes(p.x)}, {format_seconds(p.y)}" for p in line[:6]
    )
    return _scatter(points, line, words, money_or_bytes, f"{what} →")


def _pareto(points: Sequence[_Point]) -> list[_Point]:
    found: list[_Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not found or point.y < found[-1].y:
            found.append(point)
    return found


def speed_up(plan: Plan) -> str:
    """Return the speed-up of the best entry with each number of workers, and the point where more do not pay."""
    best: dict[int, Entry] = {}
    for entry in plan.ranked:
        known = best.get(entry.workers)
        if known is None or entry.batch_seconds < known.batch_seconds:
            best[entry.workers] = entry
    counts = sorted(best)
    if len(counts) < 2:
        return '<p class="note">Only one number of workers fits.</p>'
    base = best[counts[0]].batch_seconds
    points = [_Point(n, base / best[n].batch_seconds, str(best[n])) for n in counts]
    end = _stops_paying(points)
    points = [_Point(p.x, p.y, p.name, "best" if p is end else "tried") for p in points]
    words = f"Speed-up over {counts[0]} worker{'s' * (counts[0] != 1)}: " + ", ".join(
        f"{p.x:g} workers {p.y:.2f}" for p in points
    )
    chart = _scatter(points, points, words, lambda x: f"{x:g}", "workers →", lambda y: f"{y:.3g} x")
    last = end.x == points[-1].x
    said = (
        "Even the largest number of workers pays."
        if last
        else f"More than {end.x:g} workers do not pay: twice as many make a batch less than {_PAYS:.1f} times as fast."
    )
    return f'{chart}<p class="note">{said}</p>'


def _stops_paying(points: Sequence[_Point]) -> _Point:
    for point, following in pairwise(points):
        doublings = math.log2(following.x / point.x)
        if following.y / point.y < _PAYS**doublings:
            return point
    return points[-1]


def _scatter(
    points: Sequence[_Point],
    line: Sequence[_Point],
    words: str,
    across: Form,
    x_title: str,
    up: Form = format_seconds,
) -> str:
    x, y = _axis([p.x for p in points], _LEFT, _RIGHT), _axis([p.y for p in points], _BOTTOM, _TOP)
    path = "L".join(f"{x(p.x):.1f} {y(p.y):.1f}" for p in line)
    parts = [f'<path class="frontier" d="M{path}"/>']
    for p in sorted(points, key=lambda each: each.kind == "best"):
        tip = escape(f"{p.name}: {across(p.x)}, {up(p.y)}")
        radius = 6 if p.kind == "best" else 3.5
        parts.append(
            f'<circle class="{p.kind}" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="{radius}"><title>{tip}</title></circle>'
        )
    parts += _ticks([p.x for p in points], [p.y for p in points], x, y, across, up, x_title)
    return (
        f'<svg class="plot" role="img" aria-label="{escape(words)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"{''.join(parts)}</svg>"
    )


def _axis(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high, start, end)


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low or self.low <= 0:
            return (self.start + self.end) / 2
        inner = 0.04 + 0.92 * math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + inner * (self.end - self.start)


def _ticks(
    xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale, form_x: Form, form_y: Form, title: str
) -> Iterator[str]:
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
    for value in dict.fromkeys((min(xs), max(xs))):
        anchor = "start" if value == min(xs) else "end"
        yield f'<text x="{x(value):.1f}" y="{_BOTTOM + 20}" text-anchor="{anchor}">{escape(form_x(value))}</text>'
    for value in dict.fromkeys((min(ys), max(ys))):
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(form_y(value))}</text>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{escape(title)}</text>'


def predicted_and_measured(check: Check) -> str:
    """Return measured against predicted times, with the line on which they are equal."""
    points = [_Point(row.predicted_s, row.measured_s, str(row.entry)) for row in check.rows if row.measured_s]
    if not points:
        return ""
    ends = [value for p in points for value in (p.x, p.y)]
    low, high = min(ends) / 1.2, max(ends) * 1.2
    x, y = Scale(low, high, _LEFT, _RIGHT), Scale(low, high, _BOTTOM, _TOP)
    words = "; ".join(
        f"{p.name}: predicted {format_seconds(p.x)}, measured {format_seconds(p.y)}" for p in points
    )
    parts = [f'<path class="equal" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>']
    parts += [
        f'<circle class="best" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="5"><title>{escape(p.name)}</title></circle>'
        for p in points
    ]
    parts += _ticks([low, high], [low, high], x, y, format_seconds, format_seconds, "predicted →, measured ↑")
    return (
        f'<svg class="plot" role="img" aria-label="{escape(words)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"{''.join(parts)}</svg>"
    )
