"""The page's own files: markup, style and scripts, read from the package and concatenated."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files

_STYLES = ("colours.css", "page.css", "charts.css", "story.css")

# Each may use definitions of those before it. `main.js` starts the page.
_SCRIPTS = (
    "dom.js",
    "format.js",
    "scale.js",
    "looks.js",
    "tooltip.js",
    "line_chart.js",
    "curves.js",
    "spans.js",
    "lanes.js",
    "timeline.js",
    "navigation.js",
    "matrix.js",
    "topology.js",
    "histogram.js",
    "shares.js",
    "details.js",
    "theme.js",
    "main.js",
)


@functools.cache
def template() -> str:
    """Return the page without its content, as text for `string.Template`."""
    return _read("page.html")


@functools.cache
def style() -> str:
    return "\n".join(_read(name) for name in _STYLES)


@functools.cache
def script() -> str:
    """Return all scripts as one, in a function scope, so that no name is global."""
    body = "\n".join(_read(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


def content_security_policy() -> str:
    """Return a policy that loads nothing and runs only the script and style of the page itself."""
    rules = {
        "default-src": "'none'",
        "script-src": f"'{_digest(script())}'",
        "style-src": f"'{_digest(style())}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _read(name: str) -> str:
    return (files("paceline.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
