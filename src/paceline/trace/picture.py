"""A trace as an SVG: a lane for each rank, its activities as bars, and messages as lines between lanes.

Activities differ in texture as well as in colour. The numbers in the bars are steps, counted from 1. In the passes of a
pipeline they are micro-batches, if there are several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError
from paceline.show import svg
from paceline.trace.spans import COMPUTING, PASSES, Kind, SpanArray, Spans

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 110, 936, 74
_LANE, _BAR, _STRIP = 46, 22, 5
_MOST_RANKS, _MOST_SPANS = 64, 20_000
_NARROWEST_DIGIT = 11.0  # width of a number in a bar

_COMPUTE, _SEND, _RECEIVE, _UPDATE, _CANCELLED = svg.COLOURS[0], svg.COLOURS[1], *svg.COLOURS[2:4], svg.MUTED
_BACKWARD, _WEIGHTS = svg.COLOURS[6], svg.COLOURS[4]
_LOOKS = {
    Kind.COMPUTE: f'fill="{_COMPUTE}"',
    Kind.FORWARD: f'fill="{_COMPUTE}"',
    Kind.BACKWARD: f'fill="{_BACKWARD}"',
    Kind.WEIGHTS: f'fill="{_WEIGHTS}"',
    Kind.UPDATE: f'fill="{_UPDATE}"',
    Kind.CANCELLED: f'fill="url(#cancelled)" stroke="{_CANCELLED}"',
    Kind.WAIT: f'fill="none" stroke="{svg.MUTED}" stroke-dasharray="2 3"',
    Kind.SLEEP: f'fill="url(#cancelled)" stroke="{svg.FAINT}"',
    Kind.EVALUATE: f'fill="{svg.FAINT}" stroke="{svg.MUTED}"',
    Kind.SEND: f'fill="{_SEND}"',
    Kind.RECEIVE: f'fill="{_RECEIVE}"',
}
_WORDS = {
    Kind.WAIT: "waits",
    Kind.CANCELLED: "cancelled",
    Kind.SLEEP: "sleeps",
    Kind.EVALUATE: "evaluates",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.WEIGHTS: "backward of weights alone",
}
_PATTERNS = (
    '<defs><pattern id="cancelled" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><path d="M0 0V6" stroke="{_CANCELLED}" stroke-width="2"/></pattern></defs>'
)


class _Paper:
    """Maps seconds and ranks to positions in the picture."""

    def __init__(self, spans: Sequence[Spans], seconds: float) -> None:
        self.seconds = seconds
        self.lane = {each.rank: place for place, each in enumerate(spans)}
        self.bottom = _TOP + _LANE * len(spans)

    def x(self, at_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(at_s, self.seconds) / self.seconds

    def y(self, rank: int) -> float:
        return _TOP + _LANE * self.lane[rank]


def draw(
    spans: Sequence[Spans], seconds: float, *, title: str, words: str = "", under: Sequence[str] = ()
) -> str:
    """Return a picture of the first `seconds` of a trace. `under` replaces the roles below the ranks' names."""
    _check(spans, seconds)
    seen = [(each, each.array[each.array["start_s"] <= seconds]) for each in spans]
    paper = _Paper(spans, seconds)
    kinds = {Kind(int(kind)) for _, array in seen for kind in np.unique(array["kind"])}
    parts = [_PATTERNS, *_heading(title, words), *_axis(paper)]
    numbers = _numbers([array for _, array in seen])
    for place, (each, array) in enumerate(seen):
        words = under[place] if under else each.role.replace("_", " ")
        parts += [*_lane(paper, each.rank, words), *_bars(paper, each.rank, array, numbers)]
        parts += _strips(paper, each.rank, array)
    parts += [*_messages(paper, {each.rank: array for each, array in seen}), *_key(paper, kinds)]
    return svg.document(_WIDTH, paper.bottom + 62, title, parts)


def _check(spans: Sequence[Spans], seconds: float) -> None:
    count = sum(len(each) for each in spans)
    if len(spans) > _MOST_RANKS or count > _MOST_SPANS or not spans:
        bound = f"can show 1 to {_MOST_RANKS} ranks and at most {_MOST_SPANS:,} spans"
        raise ConfigurationError("trace", bound, f"{len(spans)} and {count:,}", "see run.report for more")
    if not seconds > 0:
        raise ConfigurationError("seconds", "must be above 0", seconds)


def _heading(title: str, words: str) -> Iterator[str]:
    yield svg.text(24, 32, title, size=18, weight=600)
    yield svg.text(24, 53, words, size=13, colour=svg.MUTED)


def _axis(paper: _Paper) -> Iterator[str]:
    for at_s in _ticks(paper.seconds):
        x = paper.x(at_s)
        yield svg.rule(x, _TOP - 4, x, paper.bottom)
        yield svg.text(x, paper.bottom + 16, format_seconds(at_s), anchor="middle", colour=svg.MUTED)


def _ticks(seconds: float) -> list[float]:
    """Return about six round times."""
    size = 10.0 ** np.floor(np.log10(seconds / 6))
    step = next(size * factor for factor in (1, 2, 5, 10) if seconds / (size * factor) <= 7)
    return [float(step * i) for i in range(int(seconds / step + 1e-9) + 1)]


def _numbers(arrays: Sequence[SpanArray]) -> str:
    """Return the field of a span that is printed in passes: micro-batch ("peer") or step."""
    passes = [array[np.isin(array["kind"], PASSES)] for array in arrays]
    return "peer" if any((array["peer"] > 0).any() for array in passes) else "step"


def _lane(paper: _Paper, rank: int, words: str) -> Iterator[str]:
    y = paper.y(rank)
    yield svg.text(24, y + 15, f"rank {rank}", size=13, weight=600)
    yield svg.text(24, y + 30, words, size=11, colour=svg.MUTED)
    yield svg.rule(_LEFT, y + _BAR, _RIGHT, y + _BAR)


def _bars(paper: _Paper, rank: int, array: SpanArray, numbers: str) -> Iterator[str]:
    """Yield the bars of computation. If a wait overlaps with another activity, the wait is drawn below."""
    order = (Kind.WAIT, Kind.SLEEP, Kind.EVALUATE, *COMPUTING, Kind.CANCELLED, Kind.UPDATE)
    for kind in order:
        for span in array[array["kind"] == kind]:
            left, right = paper.x(span["start_s"]), paper.x(span["end_s"])
            inset = 4 if kind == Kind.WAIT else 0
            y, height = paper.y(rank) + inset, _BAR - 2 * inset
            width = max(right - left, 0.0 if kind == Kind.WAIT else 1.0)
            yield f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{height}" {_LOOKS[kind]}/>'
            number = str(int(span["step" if kind == Kind.COMPUTE else numbers]) + 1)
            if kind in COMPUTING and width > _NARROWEST_DIGIT * len(number):
                yield svg.text((left + right) / 2, y + 15, number, anchor="middle", colour=svg.PAPER)


def _strips(paper: _Paper, rank: int, array: SpanArray) -> Iterator[str]:
    """Yield the strips of the ports: output above, input below."""
    for place, kind in enumerate((Kind.SEND, Kind.RECEIVE)):
        y = paper.y(rank) + _BAR + 1 + place * _STRIP
        for span in array[array["kind"] == kind]:
            left, right = paper.x(span["start_s"]), paper.x(span["end_s"])
            if right > left:
                size = f'width="{max(right - left, 0.6):.1f}" height="{_STRIP - 1}"'
                yield f'<rect x="{left:.1f}" y="{y}" {size} {_LOOKS[kind]}/>'


def _messages(paper: _Paper, arrays: dict[int, SpanArray]) -> Iterator[str]:
    """Yield a line for each message, from its end at the output port to its end at the input port."""
    received = {
        span["message"]: (rank, float(span["end_s"]))
        for rank, array in arrays.items()
        for span in array[(array["kind"] == Kind.RECEIVE) & (array["message"] >= 0)]
    }
    for rank, array in arrays.items():
        for span in np.sort(array[array["kind"] == Kind.SEND], order=("peer", "start_s")):
            if span["message"] in received:
                yield _line(paper, rank, float(span["start_s"]), *received[span["message"]])


def _line(paper: _Paper, rank: int, start_s: float, peer: int, end_s: float) -> str:
    x1, x2 = paper.x(start_s), paper.x(end_s)
    y1, y2 = paper.y(rank) + _BAR + 3, paper.y(peer) + _BAR + 3 + _STRIP
    return (
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{svg.MUTED}" stroke-width="0.8" opacity="0.6"/>'
        f'<circle cx="{x2:.1f}" cy="{y2:.1f}" r="1.8" fill="{svg.MUTED}"/>'
    )


def _key(paper: _Paper, kinds: set[Kind]) -> Iterator[str]:
    x, y = float(_LEFT), paper.bottom + 44
    for kind in sorted(kinds):
        words = _WORDS.get(kind, f"{kind.label}s")
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="18" height="11" {_LOOKS[kind]}/>'
        yield svg.text(x + 24, y, words, size=12)
        x += 44 + 7 * len(words)
