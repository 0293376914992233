"""Results in a notebook: tables, curves and bars as self-contained HTML.

A notebook may be light or dark, so text and axes use its own text colour. All user-supplied text passes through
`escape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from paceline.show import svg
from paceline.show.tables import Texts, is_numeric

INK = "currentColor"
_WIDTH, _HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 350, 22, 128
_POINTS = 240
_BAR, _GAP = 12, 3


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: its name and points. Some points may be missing or not finite."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]

    def points(self) -> list[tuple[float, float]]:
        """Return the finite points. If there are many, each is the mean of neighbouring points."""
        pairs = zip(self.x, self.y, strict=True)
        finite = [(x, y) for x, y in pairs if y is not None and math.isfinite(y)]
        stretch = max(1, math.ceil(len(finite) / _POINTS))
        parts = [finite[start : start + stretch] for start in range(0, len(finite), stretch)]
        return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def table(header: Texts, rows: Sequence[Texts]) -> str:
    """Return a table. Columns of numbers are right-aligned if there is a header."""
    columns = range(len(rows[0])) if rows else ()
    right = [bool(header) and is_numeric(column, rows) for column in columns]
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(f"<tr>{_cells(row, right)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _cells(row: Texts, right: Sequence[bool]) -> str:
    sides = ["right" if to_right else "left" for to_right in right]
    cells = zip(sides, row, strict=True)
    return "".join(f'<td style="text-align: {side}">{escape(text)}</td>' for side, text in cells)


def items(sentences: Sequence[str]) -> str:
    """Return a list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in sentences)}</ul>" if sentences else ""


def chart(title: str, lines: Sequence[Line], x_end: str) -> str:
    """Return curves over an axis from 0 to `x_end`; empty if no line has a point."""
    drawn = [(line.name, line.points()) for line in lines]
    drawn = [(name, points) for name, points in drawn if points]
    if not drawn:
        return ""
    values = [y for _, points in drawn for _, y in points]
    low, high = min(values), max(values)
    furthest = max(x for _, points in drawn for x, _ in points) or 1.0
    parts = [svg.text(_LEFT, 14, title, weight=600, colour=INK), *_axes(low, high, x_end)]
    for place, (name, points) in enumerate(drawn):
        colour = svg.COLOURS[place % len(svg.COLOURS)]
        parts.append(_path(points, furthest, low, high, colour, svg.DASHES[place % len(svg.DASHES)]))
        if len(drawn) > 1:
            parts.append(svg.text(_RIGHT + 12, _TOP + 10 + 15 * place, name, size=11, colour=colour))
    wide = _WIDTH + (7 * max(len(name) for name, _ in drawn) + 12 if len(drawn) > 1 else 0)
    return _picture(wide, max(_HEIGHT, _TOP + 15 * len(drawn)), title, parts)


def _axes(low: float, high: float, x_end: str) -> Iterator[str]:
    yield svg.rule(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, INK)
    yield svg.rule(_LEFT, _TOP, _LEFT, _BOTTOM, INK)
    yield svg.text(_LEFT - 5, _TOP + 9, f"{high:.3g}", size=10, anchor="end", colour=INK)
    if high > low:
        yield svg.text(_LEFT - 5, _BOTTOM, f"{low:.3g}", size=10, anchor="end", colour=INK)
    yield svg.text(_LEFT, _BOTTOM + 14, "0", size=10, colour=INK)
    yield svg.text(_RIGHT, _BOTTOM + 14, x_end, size=10, anchor="end", colour=INK)


def _path(
    points: Sequence[tuple[float, float]], furthest: float, low: float, high: float, colour: str, dash: str
) -> str:
    across, up = (_RIGHT - _LEFT) / furthest, (_BOTTOM - _TOP) / ((high - low) or 1.0)
    places = [f"{_LEFT + x * across:.1f} {_BOTTOM - (y - low) * up:.1f}" for x, y in points]
    # A single point is drawn as a line of length 0 with round ends.
    start = places[:1] if len(places) == 1 else []
    look = (
        f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-linecap="round" stroke-dasharray="{dash}"'
    )
    return f'<path d="M{"L".join([*places, *start])}" {look}/>'


def bars(title: str, names: Texts, shares: Sequence[Sequence[float]], parts: Texts) -> str:
    """Return a bar for each name, divided by shares that sum to 1, and a legend below."""
    drawn = [svg.text(4, 14, title, weight=600, colour=INK)]
    for row, (name, each) in enumerate(zip(names, shares, strict=True)):
        y, x = _TOP + row * (_BAR + _GAP), float(_LEFT)
        drawn.append(svg.text(_LEFT - 5, y + 10, name, size=10, anchor="end", colour=INK))
        for place, share in enumerate(each):
            width = share * (_RIGHT - _LEFT)
            drawn.append(_rectangle(x, y, width, _BAR, place) if width > 0 else "")
            x += width
    bottom = _TOP + len(names) * (_BAR + _GAP) + 14
    x = float(_LEFT)
    for place, part in enumerate(parts):
        drawn += [_rectangle(x, bottom - 9, 9, 9, place), svg.text(x + 13, bottom, part, size=10, colour=INK)]
        x += 24 + 6 * len(part)
    return _picture(max(_WIDTH, x), bottom + 8, title, drawn)


def _rectangle(x: float, y: float, width: float, height: float, place: int) -> str:
    colour = svg.COLOURS[place % len(svg.COLOURS)]
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _picture(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"
