"""The optional introduction of a page: paragraphs, and bars of predicted and measured times."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.analysis.comparison.entry import YARDSTICK
from paceline.analysis.comparison.proof import Proof, ProofRow, in_words
from paceline.analysis.comparison.table import Row, brief

_TIMES = "\u00d7"  # the multiplication sign


def story_section(story: Sequence[str | Proof]) -> str:
    """Return the section's markup; empty if there is no story. The first paragraph is the lead."""
    if not story:
        return ""
    parts = [
        _figure(part) if isinstance(part, Proof) else _paragraph(part, leads=place == 0)
        for place, part in enumerate(story)
    ]
    return f'<section id="story" aria-label="Predicted and measured">{"".join(parts)}</section>'


def _paragraph(text: str, *, leads: bool) -> str:
    return f'<p class="lead">{escape(text)}</p>' if leads else f"<p>{escape(text)}</p>"


def _figure(proof: Proof) -> str:
    rows = proof.rows
    shown = [each for row in rows for each in (row.predicted, row.measured) if each is not None]
    longest_s = max((each.time_s or 0.0 for each in shown), default=0.0) or 1.0
    body = "".join(_row(row, longest_s) for row in rows)
    kinds = ("predicted", "measured") if proof.measured is not None else ("predicted",)
    key = "".join(f"<span>{_svg(kind, None)}{kind}</span>" for kind in kinds)
    if any(row.predicted.speed_up for row in rows):
        key += f"<span>{_TIMES}: speed-up over {YARDSTICK}</span>"
    return (
        f'<figure class="proof"><figcaption>{escape(proof.title)}<span class="key">{key}</span></figcaption>'
        f"<table><tbody>{body}</tbody></table></figure>"
    )


def _row(row: ProofRow, longest_s: float) -> str:
    speed_up = row.predicted.speed_up
    bars = _bar("predicted", row.predicted, f", {speed_up:.1f}{_TIMES}" if speed_up else "", longest_s)
    if row.measured is not None:
        error = f", {100 * row.error:+.1f} %" if row.error is not None else ""
        bars += _bar("measured", row.measured, error, longest_s)
    name = escape(row.predicted.name).replace(":", ":<wbr>")  # a long name may wrap here
    return f'<tr><th scope="row">{name}</th><td>{bars}</td></tr>'


def _bar(kind: str, row: Row, more: str, longest_s: float) -> str:
    if row.error is not None:
        fails = "predicted to fail" if kind == "predicted" else "failed"
        return f'<div class="bar failed">{fails}: {escape(brief(row.error))}</div>'
    bar = "" if row.time_s is None else _svg(kind, row.time_s / longest_s)
    text = f'<span class="spoken">{kind}: </span>{escape(in_words(row) + more)}'
    return f'<div class="bar">{bar}<span>{text}</span></div>'


def _svg(kind: str, share: float | None) -> str:
    """Return a bar with the given share of the width, or one of fixed width for the legend if None."""
    # Attributes, not styles: the page's policy allows only its own style sheet.
    width = "18" if share is None else f"{share:.2%}"
    inner = f'<rect class="{kind}" width="100%" height="100%"/>'
    return f'<svg aria-hidden="true" width="{width}" height="11">{inner}</svg>'
