"""`paceline cut`: where a task's model is cut into stages, as a table and as a drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from paceline.cli import options
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.files import check_picture, save_picture
from paceline.cli.table import print_table
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.cutting.facts import Facts

__all__ = ["cut"]

Stages = Annotated[int, Option(help="Into how many stages the model is cut.")]
Cuts = Annotated[
    str, Option(help="Layers to cut before, with + between them. Left out: for about equal seconds.")
]
Plot = Annotated[
    Path | None, Option(metavar="FILE", help="Draw the stages and what crosses the cuts, as SVG.")
]


def cut(
    file: options.File,
    stages: Stages = 2,
    cuts: Cuts = "",
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Show where the pipelines cut a task's model: layers, parameters, seconds, and bytes across each cut."""
    with exit_codes():
        if stages < 1:
            raise ConfigurationError("--stages", "must be at least 1", stages)
        if plot is not None:
            check_picture("--plot", plot)
        facts = _find(file, stages, cuts)
        if plot is not None:
            _plot(facts, file, plot)
        if as_json:
            typer.echo(json.dumps(facts.as_dict()))
        else:
            _print(facts)


def _find(file: str, stages: int, cuts: str) -> Facts:
    from paceline.cutting.facts import facts_of
    from paceline.task_files import load_task

    with exit_codes(failure=REFUSED):
        task = load_task(file)
    names = [name for name in cuts.split("+") if name]
    return facts_of(task, len(names) + 1 if names else stages, names)


def _plot(facts: Facts, file: str, plot: Path) -> None:
    from paceline.cutting.picture import draw

    save_picture(draw(facts, f"{Path(file).stem} in {len(facts.stages)} stages"), plot)


def _print(facts: Facts) -> None:
    from paceline.cutting.picture import bars

    header = ("stage", "layers", "parameters", "operations", "seconds", "bytes to next")
    print_table(header, [stage.cells() for stage in facts.stages])
    typer.echo()
    for line in bars(facts):
        typer.echo(line)
    typer.echo()
    typer.echo(facts.words())
