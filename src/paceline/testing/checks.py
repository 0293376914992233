"""Checks of a strategy, one property per function. A function raises AssertionError if the property does not hold.

Some properties do not hold for every strategy. A *synchronous* strategy gives the weights of `single`. The weights of a
*reproducible* strategy depend on the task and the seed only, not on which worker is quicker.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import paceline as pl
from paceline.clusters.base.job import Cluster
from paceline.context import Strategy
from paceline.strategies import parse
from paceline.testing.reference import STEPS, single, train_plainly
from paceline.testing.tasks import batch_norm_task, make_task
from paceline.testing.worlds import WORLDS, simulated
from paceline.trace import COMPUTING, Kind

Spec = str | Strategy


def check_close(got: Tensor, expected: Tensor) -> None:
    """Check that weights are equal: to 1e-12 in double precision, to five digits in single precision."""
    if expected.dtype == torch.float64:
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    else:
        assert got.dtype == expected.dtype
        assert torch.linalg.vector_norm(got - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def check_trains(spec: Spec, cluster: Cluster, task: pl.Task, steps: int = STEPS) -> pl.Run:
    """Check that the run completes all its steps, with finite weights."""
    run = pl.train(task, spec, cluster, steps=steps)
    assert run.steps == steps
    assert torch.isfinite(run.parameters).all()
    return run


# Synchronous strategies


def check_weights_of_single(
    spec: Spec,
    cluster: Cluster,
    case: str = "plain",
    optimizer: str = "momentum",
    dtype: torch.dtype = torch.float64,
) -> None:
    """Check that the weights equal `single`. This defines a synchronous strategy."""
    run = pl.train(make_task(case, optimizer, dtype), spec, cluster, steps=STEPS)
    check_close(run.parameters, single(case, optimizer, dtype).parameters)


def check_batch_norm(spec: Spec, world: str, workers: int) -> None:
    """Check that each worker normalises by its own slice, and that rank 0's running statistics are used, as in DDP."""
    task = batch_norm_task()
    slices = sum(role != "server" for role in parse(spec).roles(workers))
    weights, statistics = train_plainly(task, workers=slices)
    run = pl.train(task, spec, WORLDS[world](workers), steps=STEPS)
    torch.testing.assert_close(run.parameters, weights, rtol=0, atol=1e-12)
    for name, expected in statistics.items():
        torch.testing.assert_close(run.state[name], expected, rtol=0, atol=1e-12)
    assert run.state["1.num_batches_tracked"] == STEPS


# Reproducible strategies


def check_both_worlds_give_the_same_bits(spec: Spec, workers: int, task: pl.Task) -> None:
    """Check that processes and simulation agree to the last bit, in the weights and in each loss."""
    real, virtual = (pl.train(task, spec, WORLDS[world](workers), steps=STEPS) for world in WORLDS)
    assert torch.equal(real.parameters, virtual.parameters)
    assert [record.loss for record in real.history] == [record.loss for record in virtual.history]


def check_stragglers_change_no_bit(spec: Spec) -> None:
    """Check that slow workers and a slow network change only the time."""
    slow = {"compute": pl.times.Exponential(0.1), "link": pl.Link("1Mbps", "5ms"), "slow": {0: 4.0}}
    plain, uneven = (
        pl.train(make_task(), spec, simulated(3, **changes), steps=STEPS) for changes in ({}, slow)
    )
    assert torch.equal(plain.parameters, uneven.parameters)
    assert uneven.seconds > plain.seconds


def check_checkpoints_change_no_bit(spec: Spec, folder: Path) -> None:
    """Check that a run restarted at every step, and one resumed after a stop, have the weights of an unbroken run.

    This fails for a strategy that stores state in its own variables instead of `ctx.model.state`.
    """
    task, cluster = make_task("schedule", "momentum"), simulated(3)
    plain = pl.train(task, spec, cluster, steps=STEPS)
    pl.train(task, spec, cluster, steps=STEPS - 2, checkpoint=folder, checkpoint_every=1)
    resumed = pl.train(task, spec, cluster, steps=STEPS, checkpoint=folder, checkpoint_every=1, resume="must")
    assert torch.equal(resumed.parameters, plain.parameters)
    assert [record.loss for record in resumed.history] == [record.loss for record in plain.history]


# All strategies: two simulations with the same seed are identical


def check_the_same_seed_gives_the_same_course(spec: Spec, folder: Path) -> None:
    """Check that the trace is the same, byte for byte, although compute times are random."""
    (first, first_trace), (second, second_trace) = _traced(folder, spec, 7), _traced(folder, spec, 7)
    assert first_trace == second_trace
    assert first.history == second.history
    assert torch.equal(first.parameters, second.parameters)


def check_another_seed_gives_another_course(spec: Spec, folder: Path) -> None:
    """Check that another seed gives another trace and other weights."""
    (first, first_trace), (second, second_trace) = _traced(folder, spec, 7), _traced(folder, spec, 8)
    assert first_trace != second_trace
    assert not torch.equal(first.parameters, second.parameters)


def _traced(folder: Path, spec: Spec, seed: int) -> tuple[pl.Run, bytes]:
    uneven: dict[str, Any] = {
        "compute": pl.times.Exponential(0.1),
        "delay": pl.times.Pareto(0.01, 1.5),
        "slow": {0: 1.5},
    }
    run = pl.train(make_task(), spec, simulated(3, **uneven), steps=STEPS, seed=seed)
    path = folder / "trace.json"
    run.trace.save(path)
    return run, path.read_bytes()


# All strategies: the history of a run

HISTORY_STEPS = 7  # an epoch has steps of 7, 7, 7 and 3 samples
_SAMPLES = [7, 14, 21, 24, 31, 38, 45]


def train_for_history(spec: Spec, world: str) -> pl.Run:
    """Return the run for the checks below."""
    return pl.train(make_task("batch-not-divisible"), spec, WORLDS[world](3), steps=HISTORY_STEPS)


def check_steps_count_up(run: pl.Run) -> None:
    """Check that each step has one record, in order."""
    assert [record.step for record in run.history] == list(range(1, HISTORY_STEPS + 1))
    assert run.steps == HISTORY_STEPS


def check_seconds_never_decrease(run: pl.Run) -> None:
    """Check that times never decrease, and that the last step ends with the run."""
    seconds = [record.seconds for record in run.history]
    assert all(0 < a <= b for a, b in itertools.pairwise(seconds))
    assert run.seconds == seconds[-1]


def check_samples_and_bytes_never_decrease(run: pl.Run) -> None:
    """Check that counts never decrease, that the first step has samples, and that ranks sent at least the recorded
    bytes."""
    for name in ("samples", "bytes"):
        counts = [record[name] for record in run.history]
        assert counts == sorted(counts)
    assert run.history[0].samples > 0
    assert run.history[-1].bytes <= sum(run.bytes_sent)


def check_no_metric(run: pl.Run) -> None:
    """Check that no record has a metric: the task has none."""
    assert run.metric is None
    assert all(record.metric is None for record in run.history)


def check_every_update_has_its_gradients(run: pl.Run) -> None:
    """Check that the trace has, for each step, at least one gradient (or a part of one) and one update."""
    computed = [span for spans in run.trace.spans if spans.role != "server" for span in spans.of(*COMPUTING)]
    assert len(computed) >= HISTORY_STEPS
    assert sum(len(spans.of(Kind.UPDATE)) for spans in run.trace.spans) >= HISTORY_STEPS


def check_every_sample_is_counted_once(run: pl.Run) -> None:
    """For synchronous strategies: check that each step uses all samples of its batch."""
    assert [record.samples for record in run.history] == _SAMPLES


def check_losses_are_those_of_single(run: pl.Run) -> None:
    """For synchronous strategies: check that the loss of each step equals `single`."""
    expected = torch.tensor(
        [record.loss for record in single("batch-not-divisible").history], dtype=torch.float64
    )
    got = torch.tensor([record.loss for record in run.history[: len(expected)]], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
