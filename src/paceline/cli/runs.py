"""`paceline runs`: the saved runs and checkpoints in a folder."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.options import Json
from paceline.cli.table import print_table
from paceline.show.tables import NOTHING

if TYPE_CHECKING:
    from paceline.runs.inventory import Saved

Directory = Annotated[
    Path, Argument(metavar="DIR", help="Folder with runs or checkpoints, also in subfolders.")
]
Quick = Annotated[bool, Option("--quick", help="Compare only file sizes, without reading the files.")]

_COLUMNS = 100
_GAP = 3
_HEADER = ("name", "kind", "step", "metric", "size", "age", "whole")


def runs(directory: Directory = Path("runs"), quick: Quick = False, as_json: Json = False) -> None:
    """List saved runs and checkpoints: step, metric, size, age, and whether they are intact."""
    with exit_codes():
        from paceline.runs.inventory import saved_in

        found = list(saved_in(directory, verify=not quick))
        if as_json:
            typer.echo(json.dumps([each.as_dict() for each in found]))
        elif found:
            _print(directory, found, quick)
        else:
            typer.echo(f"no runs or checkpoints in {directory}")


def _print(directory: Path, found: list[Saved], quick: bool) -> None:
    rows = [_cells(each, quick) for each in found]
    taken = [max(map(len, column)) + _GAP for column in zip(_HEADER[1:], *rows, strict=True)]
    names = {id(each): _short(_name(each, directory), _COLUMNS - sum(taken) - _GAP) for each in found}
    print_table(_HEADER, [[names[id(each)], *row] for each, row in zip(found, rows, strict=True)])
    damaged = [each for each in found if each.problem]
    if damaged:
        typer.echo()
    for each in damaged:
        typer.echo("\n".join(textwrap.wrap(f"{_name(each, directory)}: {each.problem}", _COLUMNS)))


def _cells(saved: Saved, quick: bool) -> list[str]:
    from paceline.costs.units import format_bytes

    whole = {True: "sizes match" if quick else "yes", False: "no", None: "unknown"}[saved.is_whole]
    return [
        saved.kind,
        NOTHING if saved.step is None else str(saved.step),
        NOTHING if saved.metric is None else f"{saved.metric_name} {saved.metric:.4g}",
        format_bytes(saved.nbytes),
        _age(saved.age_s),
        whole,
    ]


def _name(saved: Saved, directory: Path) -> str:
    return str(saved.folder.relative_to(directory)) if saved.folder != directory else str(directory)


def _short(name: str, columns: int) -> str:
    """Truncate a name at its beginning, because its end is more informative."""
    columns = max(columns, 8)
    return name if len(name) <= columns else "…" + name[1 - columns :]


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
