"""`paceline compare`: trains the task of a file with several strategies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import options
from paceline.cli.cluster import ClusterOptions
from paceline.cli.failures import FAILED, REFUSED, exit_codes
from paceline.cli.files import check_directory
from paceline.cli.progress import shown_comparison
from paceline.cli.table import print_table
from paceline.cli.tensorboard import Board
from paceline.cli.train import check_length
from paceline.errors import RunError
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.analysis.comparison.comparison import Comparison
    from paceline.analysis.comparison.contender import Stage


def compare(
    file: options.File,
    strategies: options.Strategies,
    workers: options.WorkersOfCluster = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    repeat: options.Repeat = 1,
    target: options.Target = None,
    against: options.Against = None,
    baseline: options.Baseline = True,
    stop_at_target: options.StopAtTarget = False,
    slow: options.Slow = None,
    delay: options.Delay = None,
    deadline: options.Deadline = None,
    ray: options.Ray = None,
    simulate: options.Simulate = False,
    link: options.Link = None,
    encrypt: options.Encrypt = None,
    threads: options.Threads = None,
    device: options.Device = None,
    bandwidth: options.Bandwidth = None,
    latency: options.Latency = None,
    compute: options.Compute = None,
    cluster: options.Cluster = None,
    hosts: options.Hosts = None,
    out: options.OutWithPage = None,
    tensorboard: options.TensorBoard = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a task with several strategies, and compare them: a table, the winner and the reason."""
    with exit_codes(), interrupts.recorded():
        check_length(steps, epochs)
        if out is not None:
            check_directory("--out", out)
        board = None if tensorboard is None else Board(tensorboard)
        words = ClusterOptions(
            workers=workers,
            slow=slow or (),
            delay=delay or (),
            deadline=deadline,
            ray=ray,
            simulate=simulate,
            link=link,
            encrypt=encrypt,
            threads=threads,
            device=device,
            bandwidth=bandwidth,
            latency=latency,
            compute=compute,
            cluster_name=cluster,
            hosts=hosts,
            emulates=True,
        )
        named = _split(strategies)
        options_of_compare = {
            "steps": steps,
            "epochs": epochs,
            "seed": seed,
            "repeat": repeat,
            "target": target,
            "against": against or (),
            "baseline": baseline,
            "stop_at_target": stop_at_target,
        }
        found = _compared(file, named, words, quiet, board, options_of_compare)
        if out is not None:
            _save(found, out, title=f"{Path(file).name} on {words.cluster()}")
        _print(found, as_json)
        if found.failed:
            raise typer.Exit(FAILED)


def _split(strategies: str) -> list[str]:
    from paceline.analysis.comparison.names import split_strategies
    from paceline.strategies import is_known, parse

    named = split_strategies(strategies, "--strategies")
    for strategy in filter(is_known, named):  # the task's file may register an unknown name
        parse(strategy)  # reject a wrong parameter before torch and the task are loaded
    return named


def _compared(
    file: str,
    strategies: Sequence[str],
    words: ClusterOptions,
    quiet: bool,
    board: Board | None,
    options_of_compare: dict[str, Any],
) -> Comparison:
    import paceline as pl

    cluster = words.cluster()
    with exit_codes(failure=REFUSED):
        task = pl.load_task(file)
    with ExitStack() as stack:
        shown = stack.enter_context(shown_comparison(quiet=quiet))

        def show(stage: Stage) -> None:
            if shown is not None:
                shown(stage)
            if board is not None and stage.run is not None:
                with board.page(f"{stage.name}/{stage.round}") as page:
                    page.write(stage.run)

        watch = show if shown or board else None
        return pl.compare(task, strategies, cluster, progress=watch, **options_of_compare)


def _save(found: Comparison, out: Path, title: str) -> None:
    try:
        found.save(out)
        found.report(out / "report.html", title=title)
    except OSError as error:
        raise RunError(f"the comparison succeeded, but could not be saved in {out}: {error}") from error
    typer.echo(f"saved in {out}; open {out / 'report.html'}", err=True)


def _print(found: Comparison, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    table = found.table
    print_table(table.header, table.cells)
    typer.echo("\n" + "\n".join(found.summary))
