"""Which strategy is first at 97 % on the handwritten digits if one of 4 workers is 4 times as slow as the others?

This compares strategies for uneven workers with strategies that wait for all workers, and with PyTorch's
DistributedDataParallel on Gloo, with the same slow worker. All have the same model, batches, seed and optimizer. A
batch has 256 samples, so that a gradient takes milliseconds and the slowdown is larger than the noise. At the task's
own learning rate, 0.05, stale gradients (`async`, `ssp`) diverge, so all strategies are also run with 0.02.

    python examples/stragglers.py             # three rounds, a few minutes on 2 cores
    python examples/stragglers.py --repeat 5
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import paceline as pl
from paceline.baselines.ddp import train_with_ddp
from paceline.cli.table import print_table
from paceline.errors import LossNotFiniteError
from paceline.trace import Kind

DDP = "ddp"
STRATEGIES = (DDP, "all-reduce", "sync", "k-sync:k=3", "k-batch-sync:k=4", "async", "ssp")
GRADIENT_AN_UPDATE = ("async", "ssp")
"""Strategies that update with the gradient of one slice. The others use three or four slices per update."""
RATES = (0.05, 0.02)
BATCH_SIZE = 256
CLUSTER = pl.Local(workers=4, slow={3: 4.0})
EPOCHS = 40
"""A run that has not reached the target by then is ended."""
EVALUATE_EVERY = 10
"""Global batches between two evaluations."""
LOSS_WINDOW = 1024
"""Samples over which a loss is averaged. A single slice has 64."""

digits = pl.load_task(Path(__file__).with_name("digits.py"))


def train(strategy: str, rate: float, seed: int) -> pl.Run | None:
    """Train until the target. Return None if the loss became infinite."""
    optimizer = partial(torch.optim.SGD, lr=rate, momentum=0.9)
    task = dataclasses.replace(digits, batch_size=BATCH_SIZE, optimizer=optimizer)
    smaller = CLUSTER.workers if strategy in GRADIENT_AN_UPDATE else 1
    run = train_with_ddp if strategy == DDP else partial(pl.train, strategy=strategy)
    try:
        return run(
            task,
            cluster=CLUSTER,
            epochs=EPOCHS,
            seed=seed,
            evaluate_every=EVALUATE_EVERY * smaller,
            stop_at_target=True,
        )
    except LossNotFiniteError:
        return None


def seconds_to_target(run: pl.Run | None, *, with_evaluation: bool = False) -> float | None:
    """Return the seconds on the run's clock, which excludes evaluation. Other workers may compute meanwhile.

    `with_evaluation` includes the evaluations.
    """
    if run is None or run.seconds_to_target is None:
        return None
    looks = [spans.of(Kind.EVALUATE) for spans in run.trace.spans] if with_evaluation else []
    return run.seconds_to_target + sum(float((each["end_s"] - each["start_s"]).sum()) for each in looks)


def take_turns(repeat: int, rate: float) -> dict[str, list[pl.Run | None]]:
    """Run every strategy once per round, starting with another one each time, so that the order favours none."""
    runs: dict[str, list[pl.Run | None]] = {name: [] for name in STRATEGIES}
    for number in range(repeat):
        start = number % len(STRATEGIES)
        for name in STRATEGIES[start:] + STRATEGIES[:start]:
            print(f"rate {rate:g}, round {number + 1} of {repeat}: {name}", file=sys.stderr)
            runs[name].append(train(name, rate, seed=number))
    return runs


def time_rows(runs: dict[str, list[pl.Run | None]]) -> list[tuple[str, ...]]:
    """Return one row per strategy: time to the target, ratio to DDP, and how the time was spent."""
    times = {name: [seconds_to_target(run) for run in each] for name, each in runs.items()}
    rows = []
    for name, each in runs.items():
        ratios = [a / b for a, b in zip(times[DDP], times[name], strict=True) if a and b]
        rows.append(
            (name, *spread(times[name]), f"{statistics.median(ratios):.2f}" if ratios else "", *pace(each))
        )
    return rows


def spread(times: Sequence[float | None]) -> tuple[str, str]:
    """Return the median and the range, or the number of runs that never reached the target."""
    reached = [time for time in times if time is not None]
    if len(reached) < len(times):
        return "", f"{len(times) - len(reached)} of {len(times)} not in {EPOCHS} epochs"
    return f"{statistics.median(reached):.2f}", f"{min(reached):.2f} to {max(reached):.2f}"


def pace(runs: Sequence[pl.Run | None]) -> tuple[str, str, str]:
    """Return the number of updates, milliseconds per update, and the idle fraction of the workers."""
    ended = [run for run in runs if run is not None]
    if not ended:
        return "", "", ""
    steps = statistics.median(run.steps for run in ended)
    step_ms = 1e3 * statistics.median(run.step_seconds for run in ended)
    idle = statistics.median(run.trace.summary().idle_share for run in ended)
    return f"{steps:.0f}", f"{step_ms:.1f}", f"{idle:.0%}"


def loss_rows(runs: dict[str, list[pl.Run | None]], moments_s: Sequence[float]) -> list[tuple[str, ...]]:
    """Return the loss over wall-clock time, for the first round."""
    return [(name, *(loss_at(each[0], moment_s) for moment_s in moments_s)) for name, each in runs.items()]


def loss_at(run: pl.Run | None, moment_s: float) -> str:
    if run is None:
        return "diverged"
    if run.seconds_to_target is not None and run.seconds_to_target <= moment_s:
        return "at target"
    past = [record for record in run.history if record.seconds <= moment_s]
    if not past:
        return ""
    recent = [record.loss for record in past if record.samples > past[-1].samples - LOSS_WINDOW]
    return f"{statistics.fmean(recent):.3f}"


def report(rate: float, runs: dict[str, list[pl.Run | None]]) -> None:
    own = " (the task's own)" if rate == RATES[0] else ""
    print(f"\nLearning rate {rate:g}{own}: seconds until {digits.target:.0%} of the test set is right\n")
    header = ("strategy", "seconds", "spread", "DDP's / this", "updates", "ms an update", "idle")
    print_table(header, time_rows(runs))
    first = next(run for each in runs.values() for run in each[:1] if run is not None)  # DDP's, if it has one
    moments_s = [first.seconds * share for share in (1 / 8, 1 / 4, 1 / 2, 1)]
    print("\nLoss against wall-clock, first round\n")
    print_table(("strategy", *(f"{moment_s:.2f} s" for moment_s in moments_s)), loss_rows(runs, moments_s))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to target with one slow worker, strategy by strategy.")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds, each with another seed")
    repeat = max(1, parser.parse_args().repeat)
    print(f"Handwritten digits, {BATCH_SIZE} samples a batch, {CLUSTER}, {torch.get_num_threads()} cores.")
    for rate in RATES:
        report(rate, take_turns(repeat, rate))


if __name__ == "__main__":
    main()
