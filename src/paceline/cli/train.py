"""`paceline train`: the task of a file, trained."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import options
from paceline.cli.cluster import ClusterWords
from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.progress import shown_progress
from paceline.cli.result import result_text
from paceline.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from paceline.run import Run
    from paceline.task import Task

__all__ = ["train"]


def train(
    file: options.File,
    strategy: options.Strategy = "all-reduce",
    workers: options.Workers = 4,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    stop_at_target: options.StopAtTarget = False,
    slow: options.Slow = None,
    delay: options.Delay = None,
    deadline: options.Deadline = None,
    simulate: options.Simulate = False,
    bandwidth: options.Bandwidth = None,
    latency: options.Latency = None,
    compute: options.Compute = None,
    out: options.Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train the task of a file with one strategy, on local workers or on simulated ones."""
    with exit_codes():
        _check_length(steps, epochs)
        _check_directory(out)
        words = ClusterWords(
            workers=workers,
            slow=slow or (),
            delay=delay or (),
            deadline=deadline,
            simulate=simulate,
            bandwidth=bandwidth,
            latency=latency,
            compute=compute,
            emulates=True,
        )
        options_of_train = {"steps": steps, "epochs": epochs, "seed": seed, "stop_at_target": stop_at_target}
        task, run = _trained(file, strategy, words, quiet, options_of_train)
        if out is not None:
            _save(run, out)
        typer.echo(json.dumps(run.as_dict()) if as_json else result_text(run, task))


def _trained(
    file: str, strategy: str, words: ClusterWords, quiet: bool, options_of_train: dict[str, Any]
) -> tuple[Task, Run]:
    import paceline as pl

    cluster = words.cluster()
    with exit_codes(failure=REFUSED):
        task = pl.load_task(file)
    with shown_progress(quiet=quiet) as progress:
        return task, pl.train(task, strategy, cluster, progress=progress, **options_of_train)


def _check_length(steps: int | None, epochs: int | None) -> None:
    if steps is not None and epochs is not None:
        given = f"--steps {steps} --epochs {epochs}"
        raise ConfigurationError("--steps", "excludes --epochs", given, "leave one of them out")


def _check_directory(out: Path | None) -> None:
    """Refuse at once what could not be saved to in the end."""
    if out is None:
        return
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError("--out", "must be a directory that can be written", str(out), "name another")


def _save(run: Run, out: Path) -> None:
    try:
        run.save(out)
    except OSError as error:
        raise RunError(f"the run ended well but could not be saved in {out}: {error}") from error
