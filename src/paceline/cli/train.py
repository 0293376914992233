"""`paceline train`: trains the task of a file."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import options
from paceline.cli.cluster import ClusterOptions
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.files import check_directory
from paceline.cli.progress import shown_progress
from paceline.cli.tensorboard import Board
from paceline.errors import ConfigurationError, RunError
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.analysis.goodput import Goodput
    from paceline.runs.run import Progress, Run
    from paceline.task.task import Task


def train(
    file: options.File,
    strategy: options.Strategy = "all-reduce",
    workers: options.WorkersOfCluster = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    precision: options.Precision = None,
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
    checkpoint: options.Checkpoint = None,
    checkpoint_every: options.CheckpointEvery = None,
    resume: options.Resume = False,
    from_dcp: options.FromDcp = None,
    max_seconds: options.MaxSeconds = None,
    out: options.Out = None,
    tensorboard: options.TensorBoard = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a task with one strategy: on local workers, on Ray (--ray), on Spark (--spark), or in simulation
    (--simulate)."""
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
        options_of_train = {
            "steps": steps,
            "epochs": epochs,
            "seed": seed,
            "stop_at_target": stop_at_target,
            "checkpoint": checkpoint,
            "checkpoint_every": checkpoint_every,
            "resume": resume if from_dcp is None else from_dcp,
            "max_seconds": max_seconds,
        }
        run, goodput = _trained(file, strategy, words, quiet, board, precision, options_of_train)
        if out is not None:
            _save(run, out)
        typer.echo(json.dumps(_figures(run, goodput)) if as_json else result_text(run, goodput))


def with_precision(task: Task, precision: str | None) -> Task:
    """Return the task with another precision. None to keep its own."""
    return task if precision is None else dataclasses.replace(task, precision=precision)


def check_length(steps: int | None, epochs: int | None) -> None:
    """Raise if both are given."""
    if steps is not None and epochs is not None:
        given = f"--steps {steps} --epochs {epochs}"
        raise ConfigurationError("--steps", "excludes --epochs", given, "omit one of them")


def _trained(
    file: str,
    strategy: str,
    words: ClusterOptions,
    quiet: bool,
    board: Board | None,
    precision: str | None,
    options_of_train: dict[str, Any],
) -> tuple[Run, Goodput | None]:
    import paceline as pl
    from paceline.errors import PeerLost

    cluster = words.cluster()
    with exit_codes(failure=REFUSED):
        task = with_precision(pl.load_task(file), precision)
    with ExitStack() as stack:
        shown = stack.enter_context(shown_progress(quiet=quiet))
        page = None if board is None else stack.enter_context(board.page(strategy))

        watchers = [each for each in (shown, page.show if page is not None else None) if each is not None]

        def show(progress: Progress) -> None:
            for watcher in watchers:
                watcher(progress)

        length = {name: options_of_train[name] for name in ("steps", "epochs", "seed")}
        try:
            run = pl.train(task, strategy, cluster, progress=show if watchers else None, **options_of_train)
        except PeerLost:
            if (goodput := _goodput(task, strategy, cluster, length)) is not None:
                from paceline.runs.summary import aligned

                typer.echo(aligned(goodput.lines()), err=True)
            raise
        if page is not None:
            page.write(run)
        return run, _goodput(task, strategy, cluster, length)


def _goodput(task: Task, strategy: str, cluster: Any, length: dict[str, Any]) -> Goodput | None:
    """Return the goodput of a simulated run with random failures. None for other runs."""
    import paceline as pl
    from paceline.analysis.goodput import goodput_of

    is_random = any(isinstance(fault, pl.faults.Random) for fault in getattr(cluster, "faults", ()))
    if not is_random or not isinstance(cluster, pl.Simulated):
        return None
    return goodput_of(task, strategy, cluster, **length)


def _figures(run: Run, goodput: Goodput | None) -> dict[str, Any]:
    from paceline.analysis.diagnosis.diagnose import diagnose
    from paceline.analysis.diagnosis.words import sentences

    found = {} if goodput is None else {"goodput": dataclasses.asdict(goodput)}
    return {**run.as_dict(), "diagnosis": sentences(diagnose(run)), **found}


def _save(run: Run, out: Path) -> None:
    try:
        run.save(out)
    except OSError as error:
        raise RunError(f"the run succeeded, but could not be saved in {out}: {error}") from error


def result_text(run: Run, goodput: Goodput | None = None) -> str:
    """Return strategy, seconds, steps, loss, metric, target and shares of time, one per line; then the slow ranks."""
    from paceline.runs.summary import aligned, as_lines

    lines = as_lines(run) | ({} if goodput is None else goodput.lines())
    return "\n".join([aligned(lines), *_diagnosis(run)])


def _diagnosis(run: Run) -> list[str]:
    """Return sentences on slow ranks; empty if only one rank computes."""
    from paceline.analysis.diagnosis.diagnose import diagnose
    from paceline.analysis.diagnosis.words import sentences

    found = diagnose(run)
    return ["", *sentences(found)] if found.compute is not None else []
