"""`paceline check`: a trial of a task before training."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from paceline.cli.failures import REFUSED, exit_codes
from paceline.cli.options import File, Quiet, Seed, Workers
from paceline.cli.progress import shown_name
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.checking import Checked
    from paceline.checking.trials import Trials

_COLUMNS = 100


FailuresEvery = Annotated[
    str | None,
    Option(metavar="TIME", help="Mean time between failures, such as 6h, for the best checkpoint interval."),
]


Seconds = Annotated[
    float, Option(min=0.0, help="Time for the trials of strategies, the cheapest first, in seconds.")
]


def check(
    file: File,
    workers: Workers = 4,
    seed: Seed = 0,
    failures_every: FailuresEvery = None,
    seconds: Seconds = 60.0,
    quiet: Quiet = False,
) -> None:
    """Test a task file: run one batch, and a step of each strategy. Print costs and problems."""
    with exit_codes(), interrupts.recorded():
        failures = _failures(failures_every)
        from paceline.checking import check_task
        from paceline.task.files import load_task

        with exit_codes(failure=REFUSED):
            task = load_task(file)
        with shown_name("trying", quiet=quiet) as show:
            found = check_task(task, workers=workers, seed=seed, seconds=seconds, progress=show)
        typer.echo("\n".join(_lines(shlex.quote(file), found, workers, failures)))


def _failures(every: str | None) -> dict[str, float]:
    """Return the seconds between two failures by description, for the table."""
    if every is None:
        return {"for a failure per hour": 3600.0, "per day": 86_400.0, "per week": 604_800.0}
    from paceline.costs.units import check_positive, format_seconds, parse_seconds

    seconds = parse_seconds(every, "--failures-every")
    check_positive(seconds, "--failures-every", "give the time between two failures")
    return {f"for a failure every {format_seconds(seconds)}": seconds}


def _lines(file: str, found: Checked, workers: int, failures: dict[str, float]) -> Iterator[str]:
    rows = {**_rows(found), "a checkpoint": _checkpoint(found, failures)}
    width = max(map(len, rows)) + 2
    for name, text in rows.items():
        yield from _wrapped(text, f"{name:{width}}", " " * width)
    yield ""
    for finding in found.findings:
        yield from _wrapped(f"{finding.strategies}: {finding.why}", "- ", "  ")
    yield from _wrapped(_tried(found, workers), "", "")
    yield ""
    if found.trainable_here:
        yield f"next: paceline train {file} --workers {workers}"
        yield f"or:   paceline compare {file} --strategies all-reduce,async --workers {workers}"
    else:
        yield f"fix the first problem, then run again: paceline check {file}"


def _rows(found: Checked) -> dict[str, str]:
    from paceline.costs.units import format_bytes, format_seconds

    frozen = found.parameters - found.trainable
    whole, own = found.batch_size, found.slice_size
    metric = "none, so there is no target" if found.metric is None else f"{found.metric:.4g} (untrained)"
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in found.memory.items())
    return {
        "parameters": f"{found.parameters:,}, {f'{frozen:,} of them frozen' if frozen else 'all trained'}; "
        + format_bytes(found.model_bytes),
        "samples": (f"{found.samples:,}" if found.samples is not None else "a stream: give --steps")
        + (f", {found.test_samples:,} for tests" if found.test_samples else ""),
        "first loss": f"{found.loss:.4g}",
        "metric": metric,
        "a gradient": f"{format_seconds(found.gradient_s(whole))} for a batch of {whole:,}, "
        f"{format_seconds(found.gradient_s(own))} for a worker's slice of {own:,}, "
        f"with {found.threads} thread{'s' * (found.threads > 1)}",
        "an update": format_seconds(found.price.update_s),
        "memory": f"{format_bytes(sum(found.memory.values()))} per worker: {memory}",
    }


def _checkpoint(found: Checked, failures: dict[str, float]) -> str:
    from paceline.costs.intervals import daly_s
    from paceline.costs.units import format_bytes, format_seconds

    size = format_bytes(found.checkpoint_bytes)
    if found.checkpoint_s is None:
        return f"{size}; this folder is not writable"
    best = {words: daly_s(found.checkpoint_s, every_s) for words, every_s in failures.items()}
    listed = ", ".join(f"{format_seconds(seconds)} {words}" for words, seconds in best.items())
    return f"{size}, {format_seconds(found.checkpoint_s)} to this disk; best interval (Young, Daly): {listed}"


def _tried(found: Checked, workers: int) -> str:
    """Describe which strategies were tried."""
    trials = found.trials
    where = f"on {workers} simulated workers"
    if not trials.works and not trials.failures:
        return f"No strategy was tried: there is not enough memory for {workers + 1} copies of the model."
    text = f"{len(trials.works)} of {len(trials.works) + len(trials.failures)} strategies tried {where} work."
    if trials.untried:
        text += f" Not tried within --seconds: {', '.join(trials.untried)}{_remaining(trials)}."
    return text


def _remaining(trials: Trials) -> str:
    from paceline.costs.units import format_seconds

    return "" if trials.remaining_s is None else f" (about {format_seconds(trials.remaining_s)} more)"


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )
