"""`paceline explain CODE`: the page of a numbered error. The site has the same pages."""

from __future__ import annotations

import re
from importlib import resources
from typing import Annotated

import typer

from paceline.cli.failures import exit_codes
from paceline.errors import UnknownNameError

_FOLDER = resources.files("paceline.cli") / "explanations"
_CODE = re.compile(r"(?i)(?:PL-)?(\d{1,3})")


def explain(
    code: Annotated[
        str | None, typer.Argument(help="Number of an error, such as PL-033 or 33.", show_default=False)
    ] = None,
) -> None:
    """Explain an error by its number: causes and remedies. Without a number, list all errors."""
    with exit_codes():
        typer.echo("\n".join(titles()) if code is None else explanation(code).rstrip())


def codes() -> list[str]:
    """Return the codes of all errors."""
    return sorted(each.name.removesuffix(".md") for each in _FOLDER.iterdir() if each.name.endswith(".md"))


def titles() -> list[str]:
    return [explanation(code).partition("\n")[0].removeprefix("# ") for code in codes()]


def explanation(code: str) -> str:
    """Return the page of an error, as Markdown."""
    match = _CODE.fullmatch(code.strip())
    name = f"PL-{int(match[1]):03}" if match else code
    if name not in codes():
        raise UnknownNameError("code", name, codes())
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
