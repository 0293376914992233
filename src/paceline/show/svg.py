"""Colours and SVG elements shared by the plots.

The colours can be distinguished with most kinds of colour vision (Okabe and Ito 2008). For viewers with a dark theme, a
style sheet in the SVG replaces each colour by a dark variant.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, MUTED, FAINT, PAPER = "#1f2328", "#59636e", "#e4e7eb", "#ffffff"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7b3fb3", "#a3321a")
DASHES = ("", "9 4", "2 3", "12 4 2 4", "5 3", "14 4", "2 5", "9 3 2 3 2 3")

_DARK = {
    INK: "#e6edf3",
    MUTED: "#9198a1",
    FAINT: "#2a3038",
    PAPER: "#0d1117",
    "#0072b2": "#4aa8e0",
    "#d55e00": "#f0803c",
    "#009e73": "#2fc49a",
    "#8a6d00": "#c9a227",
    "#56b4e9": "#b3def7",
    "#7b3fb3": "#b78be0",
    "#a3321a": "#e0705a",
}


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return a complete SVG document. The title is for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif">'
    )
    paper = f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", _style(), paper, *parts, "</svg>\n"])


def rule(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    weight: int = 400,
    anchor: str = "start",
    colour: str = INK,
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" font-weight="{weight}"'
    return f'<text {place} text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _style() -> str:
    rules = "".join(
        f'[{paint}="{light}"]{{{paint}:{dark}}}'
        for light, dark in _DARK.items()
        for paint in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
