"""Plot of a cut model: one bar for each stage, as long as its time, and the bytes that cross each cut."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.checking.cut_facts import Facts, StageFacts
from paceline.costs.units import format_bytes, format_seconds
from paceline.show import svg

_WIDTH, _LEFT, _TOP, _ROW, _BAR = 880, 24, 92, 74, 30
_LONGEST = 480.0
_COLUMNS = 40


def bars(facts: Facts) -> list[str]:
    """Return the plot as lines for a terminal."""
    longest = facts.slowest.seconds
    lines = []
    for stage in facts.stages:
        filled = max(1, round(_COLUMNS * stage.seconds / longest))
        lines.append(f"stage {stage.number}  {'█' * filled} {format_seconds(stage.seconds)}")
        if stage.bytes_out:
            lines.append(f"         ↓ {format_bytes(stage.bytes_out)}")
    return lines


def draw(facts: Facts, title: str) -> str:
    """Return the plot as SVG."""
    parts = [
        svg.text(_LEFT, 34, title, size=18, weight=600),
        svg.text(
            _LEFT, 56, f"seconds for a batch of {facts.samples}, forward and backward", colour=svg.MUTED
        ),
    ]
    for stage in facts.stages:
        parts += _stage(stage, facts.slowest.seconds)
    return svg.document(_WIDTH, _TOP + _ROW * len(facts.stages) + 16, title, parts)


def _stage(stage: StageFacts, longest_s: float) -> Iterator[str]:
    y = _TOP + _ROW * stage.number
    width = max(2.0, _LONGEST * stage.seconds / longest_s)
    yield f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="3" fill="{svg.COLOURS[0]}"/>'
    x = _LEFT + width + 12
    words = f"stage {stage.number}: {format_seconds(stage.seconds)}, {stage.parameters:,} parameters"
    yield svg.text(x, y + 13, words, size=13, weight=600)
    yield svg.text(x, y + 29, stage.layers, size=12, colour=svg.MUTED)
    if stage.bytes_out:
        yield svg.rule(_LEFT + 16, y + _BAR + 4, _LEFT + 16, y + _ROW - 8, svg.COLOURS[1])
        yield svg.text(
            _LEFT + 26,
            y + _BAR + 26,
            f"{format_bytes(stage.bytes_out)} per batch, and the same amount back",
            size=12,
        )
