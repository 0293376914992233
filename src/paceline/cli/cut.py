"""`paceline cut`: where a task's model is cut into stages, as a table and a plot."""

from __future__ import annotations

import json
from dataclasses import asdict
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
    from paceline.checking.cut_facts import Facts

Stages = Annotated[int, Option(help="Number of stages.")]
Cuts = Annotated[str, Option(help="Layers to cut before, joined by +. Default: cuts for about equal times.")]
Tensor = Annotated[
    int, Option(metavar="SIZE", help="List the layers that tensor:size=SIZE splits, instead of stages.")
]
Plot = Annotated[
    Path | None, Option(metavar="FILE", help="Plot the stages and the bytes across the cuts, as SVG.")
]


def cut(
    file: options.File,
    stages: Stages = 2,
    cuts: Cuts = "",
    tensor: Tensor = 1,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Show the pipeline stages of a task's model: layers, parameters, seconds, and bytes across each cut."""
    with exit_codes():
        if stages < 1:
            raise ConfigurationError("--stages", "must be at least 1", stages)
        if tensor > 1:
            _print_split_layers(file, tensor, as_json=as_json)
            return
        if plot is not None:
            check_picture("--plot", plot)
        facts = _find(file, stages, cuts)
        if plot is not None:
            _plot(facts, file, plot)
        if as_json:
            typer.echo(json.dumps(facts.as_dict()))
        else:
            _print(facts)


def _print_split_layers(file: str, size: int, *, as_json: bool) -> None:
    from paceline.checking.cut_facts import split_layers_of
    from paceline.task.files import load_task

    with exit_codes(failure=REFUSED):
        task = load_task(file)
    found = split_layers_of(task, size)
    typer.echo(json.dumps(asdict(found)) if as_json else found.words())


def _find(file: str, stages: int, cuts: str) -> Facts:
    from paceline.checking.cut_facts import facts_of
    from paceline.task.files import load_task

    with exit_codes(failure=REFUSED):
        task = load_task(file)
    names = [name for name in cuts.split("+") if name]
    return facts_of(task, len(names) + 1 if names else stages, names)


def _plot(facts: Facts, file: str, plot: Path) -> None:
    from paceline.checking.cut_picture import draw

    save_picture(draw(facts, f"{Path(file).stem} in {len(facts.stages)} stages"), plot)


def _print(facts: Facts) -> None:
    from paceline.checking.cut_picture import bars

    header = ("stage", "layers", "parameters", "operations", "seconds", "bytes to next")
    print_table(header, [stage.cells() for stage in facts.stages])
    typer.echo()
    for line in bars(facts):
        typer.echo(line)
    typer.echo()
    typer.echo(facts.words())
