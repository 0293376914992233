"""The reference of the command line, from the parser that `paceline --help` prints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from paceline.cli import app

BEGINNING = """\
# Command line

`paceline COMMAND --help` prints the same. Exit codes: 0 success, 1 a run failed, 2 refused before anything ran,
130 interrupted by Ctrl-C.

"""


def pages() -> dict[str, str]:
    group = typer.main.get_command(app)
    parts = [line for name, command in group.commands.items() for line in section(name, command)]
    return {"reference/cli.md": BEGINNING + "\n".join(parts)}


def section(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"## paceline {name}", "", *inspect.cleandoc(command.help or "").splitlines(), "")
    yield from (f"    paceline {name} {usage}", "")
    records = (parameter.get_help_record(context) for parameter in command.params)
    for record in filter(None, records):  # hidden options have none
        yield from entry(*record)


def entry(names: str, words: str) -> Iterator[str]:
    """Yield an option as an item of a list: names, help, default."""
    yield f"- **`{names}`**: {' '.join(words.split()).replace('[', chr(92) + '[')}"
    yield ""
