"""`paceline strategies`: what there is to choose from, by family; `paceline strategies NAME`: all about one."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from paceline.cli.failures import exit_codes

__all__ = ["strategies"]

_COLUMNS = 100


def strategies(
    name: Annotated[str | None, typer.Argument(help="Tell all about this one.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all parameters.")] = False,
) -> None:
    """List the strategies, by family; or tell what one does, when to use it, its cost, parameters and paper."""
    with exit_codes():
        if name is not None:
            one = _described(name)
            typer.echo(json.dumps(one, indent=2, default=str) if as_json else "\n".join(_page(one)))
            return
        described = list(_all())
        if as_json:
            typer.echo(json.dumps(described, indent=2, default=str))
        else:
            typer.echo("\n".join(_list(described)))


def _all() -> Iterator[dict[str, Any]]:
    from paceline.strategies import ALIASES, STRATEGIES, load_entry_points
    from paceline.strategies.pages import OTHERS

    missing = load_entry_points()
    yield from (_described(name) for name in STRATEGIES)
    for name, known in ALIASES.items():
        yield _bare(name, f"Another name of {known}.", "other names")
    for name, error in missing.items():
        yield _bare(name, f"Missing: {error}", OTHERS)


def _bare(name: str, summary: str, family: str) -> dict[str, Any]:
    return {"name": name, "family": family, "summary": summary, "parameters": []}


def _described(name: str) -> dict[str, Any]:
    from paceline.strategies import ALIASES, find
    from paceline.strategies.pages import family_of, page_of

    kind, known = find(name), ALIASES.get(name, name)
    page = page_of(kind)
    return {
        "name": known,
        "family": family_of(known),
        "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
        "what": page.what,
        **{heading.lower(): text for heading, text in page.notes.items()},
        "parameters": [
            {"name": field.name, "default": _default(field), "help": field.metadata.get("help", "")}
            for field in dataclasses.fields(kind)
            if field.init
        ],
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _list(described: list[dict[str, Any]]) -> Iterator[str]:
    for family in dict.fromkeys(one["family"] for one in described):
        members = [one for one in described if one["family"] == family]
        width = max(len(one["name"]) for one in members)
        yield f"{family}:"
        for one in members:
            summary = one["summary"]
            if not summary.startswith("Missing"):  # why is told in full
                summary = textwrap.shorten(summary, _COLUMNS - width - 4, placeholder=" …")
            yield f"  {one['name']:{width}}  {summary}"
        yield ""
    yield "paceline strategies NAME tells all about one of them."


def _page(one: dict[str, Any]) -> Iterator[str]:
    yield one["name"]
    yield ""
    for paragraph in one["what"].split("\n\n"):
        yield from paragraph.splitlines()
        yield ""
    for heading in ("when", "cost", "source"):
        if heading in one:
            yield f"{heading.capitalize()}:"
            yield from (f"  {line}" for line in one[heading].splitlines())
            yield ""
    if one["parameters"]:
        yield f"Parameters, as in {one['name']}:{one['parameters'][0]['name']}=…:"
        for each in one["parameters"]:
            text = f"{each['name']}={each['default']}  {each['help']}"
            yield from textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="      ")
