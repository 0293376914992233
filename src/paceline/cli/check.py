"""`paceline check`: a task tried before it is trained."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from paceline.cli.failures import exit_codes
from paceline.cli.options import File, Seed, Workers

if TYPE_CHECKING:
    from paceline.checking import Checked

__all__ = ["check"]

_COLUMNS = 100


def check(file: File, workers: Workers = 4, seed: Seed = 0) -> None:
    """Build the task of a file, run one batch, and say what was found."""
    with exit_codes():
        from paceline.checking import check_task
        from paceline.task_files import load_task

        typer.echo("\n".join(_lines(file, check_task(load_task(file), workers=workers, seed=seed), workers)))


def _lines(file: str, found: Checked, workers: int) -> Iterator[str]:
    from paceline.costs.units import format_bytes, format_seconds  # it brings numpy

    slice_ = -(-found.batch_size // workers)
    rows = {
        "parameters": f"{found.parameters:,}, {found.trainable:,} of them trained; {format_bytes(found.model_bytes)}",
        "samples": (f"{found.samples:,}" if found.samples is not None else "a stream: give --steps")
        + (f", {found.test_samples:,} for tests" if found.test_samples else ""),
        "first loss": f"{found.loss:.4g}",
        "metric": "none: no target can be reached"
        if found.metric is None
        else f"{found.metric:.4g} untrained",
        "a gradient": f"{format_seconds(found.gradient_s(found.batch_size))} of a batch of {found.batch_size}, "
        f"{format_seconds(found.gradient_s(slice_))} of a slice of {slice_}",
        "an update": format_seconds(found.price.update_s),
        "memory": f"{format_bytes(found.peak_bytes)} a worker for parameters, gradients and optimizer state; "
        "activations come on top",
    }
    width = max(map(len, rows))
    yield from (f"{name:{width}}  {text}" for name, text in rows.items())
    yield ""
    for finding in found.findings:
        text = f"{finding.strategies}: {finding.why}"
        yield from textwrap.wrap(text, _COLUMNS, initial_indent="- ", subsequent_indent="  ")
    yield "it can be trained with every strategy" if not found.findings else ""
    yield f"next: paceline train {file} --workers {workers}, or paceline compare {file}"
