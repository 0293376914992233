"""`paceline strategies`: the list of strategies by family; `paceline strategies NAME`: the details of one."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from paceline.cli.failures import exit_codes

_COLUMNS = 100
_HEADINGS = {"when": "When", "cost": "Cost", "source": "Paper"}


def strategies(
    name: Annotated[str | None, typer.Argument(help="Describe this strategy.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all parameters.")] = False,
) -> None:
    """List all strategies, or describe one: method, when to use it, cost, parameters and paper."""
    with exit_codes():
        if name is not None:
            name = name.partition(":")[0]  # accept a strategy with parameters too
            one = _described(name)
            typer.echo(json.dumps(one, indent=2, default=str) if as_json else "\n".join(_page(one, name)))
            return
        described = list(_all())
        if as_json:
            typer.echo(json.dumps(described, indent=2, default=str))
        else:
            typer.echo("\n".join(_list(described)))


def _all() -> Iterator[dict[str, Any]]:
    from paceline.strategies import ALIASES, STRATEGIES, load_entry_points
    from paceline.strategies.registry.aliases import OTHER_SYSTEMS
    from paceline.strategies.registry.descriptions import OTHERS

    missing = load_entry_points()
    yield from (_described(name) for name in STRATEGIES)
    for word in OTHER_SYSTEMS:
        for name in word.names:
            if name in ALIASES:
                system = word.system.replace(", ", " and ")
                theirs = f"called {word.thing} in {system}" if word.thing else f"as in {system}"
                yield _bare(name, f"{word.ours}, {theirs}.", "other names")
    for name, error in missing.items():
        yield _bare(name, f"Missing: {error}", OTHERS)


def _bare(name: str, summary: str, family: str) -> dict[str, Any]:
    return {"name": name, "family": family, "summary": summary, "parameters": []}


def _described(name: str) -> dict[str, Any]:
    from paceline.strategies import find
    from paceline.strategies.registry.descriptions import description_of, family_of
    from paceline.strategies.registry.table import word_of

    kind, known = find(name), word_of(name)
    page = description_of(kind)
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
            if not summary.startswith("Missing"):  # the reason is shown in full
                summary = textwrap.shorten(summary, _COLUMNS - width - 4, placeholder=" …")
            yield f"  {one['name']:{width}}  {summary}"
        yield ""
    yield "`paceline strategies NAME` describes one: method, when to use it, cost, paper and parameters."


def _page(one: dict[str, Any], asked: str) -> Iterator[str]:
    yield one["name"] if asked == one["name"] else f"{one['name']} (also called {asked})"
    yield ""
    for paragraph in one["what"].split("\n\n"):
        for item in re.split(r"\n(?=- )", paragraph):
            yield from _wrapped(item, later="  " if item.startswith("- ") else "")
        yield ""
    for heading, name in _HEADINGS.items():
        if heading in one:
            yield f"{name}:"
            yield from _wrapped(one[heading], "  ")
            yield ""
    if one["parameters"]:
        yield f"Parameters, as in {one['name']}:{one['parameters'][0]['name']}=…:"
        for each in one["parameters"]:
            yield from _wrapped(f"{each['name']}={each['default']}  {each['help']}", "  ", "      ")


def _wrapped(text: str, first: str = "", later: str | None = None) -> list[str]:
    """Wrap a text as one paragraph, ignoring its line breaks."""
    return textwrap.wrap(
        " ".join(text.splitlines()),
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=first if later is None else later,
        break_on_hyphens=False,
        break_long_words=False,
    )
