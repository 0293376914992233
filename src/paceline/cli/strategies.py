"""`paceline strategies`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Annotated, Any

import typer

from paceline.cli.failures import exit_codes
from paceline.cli.table import print_table

__all__ = ["strategies"]


def strategies(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the strategies: name, what each does, its parameters with their defaults."""
    with exit_codes():
        from paceline.strategies import ALIASES, STRATEGIES, load_entry_points

        missing = load_entry_points()
        described = [_described(name, kind) for name, kind in STRATEGIES.items()]
        described += [
            {"name": name, "summary": f"Another name of {known}.", "parameters": []}
            for name, known in ALIASES.items()
        ]
        described += [
            {"name": name, "summary": f"Missing: {error}", "parameters": []}
            for name, error in missing.items()
        ]
        if as_json:
            typer.echo(json.dumps(described, indent=2, default=str))
        else:
            print_table(("strategy", "what it does", "parameters"), [_row(one) for one in described])


def _described(name: str, kind: type[Any]) -> dict[str, Any]:
    parameters = [
        {"name": field.name, "default": _default(field), "help": field.metadata.get("help", "")}
        for field in dataclasses.fields(kind)
        if field.init
    ]
    summary = (inspect.getdoc(kind) or "").partition("\n")[0]
    return {"name": name, "summary": summary, "parameters": parameters}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _row(described: dict[str, Any]) -> tuple[str, str, str]:
    parameters = (
        f"{one['name']}={one['default']}" + (f": {one['help']}" if one["help"] else "")
        for one in described["parameters"]
    )
    return described["name"], described["summary"], "; ".join(parameters)
