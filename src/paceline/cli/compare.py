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
    from paceline.runs.run import Run


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
    min_workers: options.MinWorkers = None,
    restart: options.Restart = False,
    fault: options.Fault = None,
    deadline: options.Deadline = None,
    ray: options.Ray = None,
    spark: options.Spark = None,
    simulate: options.Simulate = False,
    link: options.Link = None,
    encrypt: options.Encrypt = None,
    threads: options.Threads = None,
    device: options.Device = None,
    bandwidth: options.Bandwidth = None,
    latency: options.Latency = None,
    slow_link: options.SlowLink = None,
    math: options.Math = None,
    compute: options.Compute = None,
    cluster: options.Cluster = None,
    hosts: options.Hosts = None,
    calibration: options.Calibration = None,
    out: options.OutWithPage = None,
    resume: options.ResumeComparison = False,
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
            min_workers=min_workers,
            restart=restart,
            fault=fault or (),
            deadline=deadline,
            ray=ray,
            spark=spark,
            simulate=simulate,
            link=link,
            encrypt=encrypt,
            threads=threads,
            device=device,
            bandwidth=bandwidth,
            latency=latency,
            slow_link=slow_link or (),
            math=math,
            compute=compute,
            cluster_name=cluster,
            hosts=hosts,
            calibration=calibration,
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
            "out": out,
            "resume": resume,
        }
        ended: dict[str, list[Run]] = {}
        try:
            with interrupts.terminated_as_interrupted():
                found = _compared(file, named, words, quiet, board, ended, options_of_compare)
        except KeyboardInterrupt:
            _show(_unfinished(ended), file, out, as_json)
            if out is not None:
                typer.echo("add --resume to the same command to continue", err=True)
            raise
        _show(found, file, out, as_json)
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
    ended: dict[str, list[Run]],
    options_of_compare: dict[str, Any],
) -> Comparison:
    """Make the comparison. `ended` receives each run when it ends."""
    import paceline as pl

    cluster = words.cluster()
    with exit_codes(failure=REFUSED):
        task = pl.load_task(file)
    with ExitStack() as stack:
        shown = stack.enter_context(shown_comparison(quiet=quiet))

        def show(stage: Stage) -> None:
            if shown is not None:
                shown(stage)
            if stage.run is not None:
                ended.setdefault(stage.name, []).append(stage.run)
            if board is not None and stage.run is not None:
                with board.page(f"{stage.name}/{stage.round}") as page:
                    page.write(stage.run)

        return pl.compare(task, strategies, cluster, progress=show, **options_of_compare)


def _unfinished(ended: dict[str, list[Run]]) -> Comparison:
    from paceline.analysis.comparison.comparison import Comparison
    from paceline.analysis.comparison.entry import Entry

    return Comparison(entries=tuple(Entry(name=name, runs=tuple(runs)) for name, runs in ended.items()))


def _show(found: Comparison, file: str, out: Path | None, as_json: bool) -> None:
    """Print the comparison and write its page, if a strategy has ended."""
    if not found.entries:
        return
    if out is not None:
        _write_page(found, out, task=Path(file).name)
    _print(found, as_json)


def _write_page(found: Comparison, out: Path, task: str) -> None:
    from paceline.analysis.comparison.title import title

    try:
        found.report(out / "report.html", title=title(found.entries, task))
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
