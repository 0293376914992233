"""Cost of refusing gradients that are not finite: time of the check as a fraction of its step.

A step is one gradient and one update, on one thread and without communication. This is the shortest step, so the
fraction is the largest. The check is timed where it runs, in the middle of the backward pass, with the caches as they
are then. The fastest step and the fastest check of a round count, because other processes disturb them least. Each
round takes one step of each model in turn. Large layers with few samples are the worst case: their gradient needs
little work per value, and the check has to read every value once more.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import paceline as pl
from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_optimizer
from benchmarks.result import Goal, Result, Row
from benchmarks.rounds import rounds
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model import finite
from paceline.model.replica import Replica

ROUNDS = 15
LIMIT_S = 40.0
STEPS = 5  # steps of each model per round
DIGITS = Path(__file__).parents[1] / "examples" / "digits.py"
LARGE = (1024, 2048, 2048, 1536, 10)


class Training:
    """One model, trained step by step in this process."""

    def __init__(self, task: pl.Task) -> None:
        self._samples = Samples(task.build_data())
        self._batches = GlobalBatches(self._samples.length, task.batch_size, seed=0)
        self.replica = Replica.of(task, task.build_model(0))
        self._step = 0

    def step(self) -> float:
        """Take one step. Return its seconds."""
        start_s = time.perf_counter()
        self.replica.compute(self._batches.slice(self._step, 0, 1), self._samples)
        self.replica.apply()
        self._step += 1
        return time.perf_counter() - start_s


def measure() -> Result:
    torch.set_num_threads(1)
    trainings = {name: Training(task) for name, task in _tasks().items()}
    steps_s: dict[str, list[float]] = {name: [] for name in trainings}
    checks_s: dict[str, list[float]] = {name: [] for name in trainings}
    with _timed_checks() as take:
        for training in trainings.values():
            training.step()  # the first step allocates memory
        for _ in rounds(ROUNDS, LIMIT_S):
            for name, training in trainings.items():
                pairs = [_step(training, take) for _ in range(STEPS)]
                steps_s[name].append(min(step_s for step_s, _ in pairs))
                checks_s[name].append(min(check_s for _, check_s in pairs))
    return _result(trainings, steps_s, checks_s)


def _step(training: Training, take: Callable[[], float]) -> tuple[float, float]:
    take()
    return training.step(), take()


@contextmanager
def _timed_checks() -> Iterator[Callable[[], float]]:
    """Time every check. Yield a function that returns the seconds since its last call."""
    plain, spent_s = finite.is_finite, 0.0

    def timed(tensor: Tensor) -> bool:
        nonlocal spent_s
        start_s = time.perf_counter()
        found = plain(tensor)
        spent_s += time.perf_counter() - start_s
        return found

    def take() -> float:
        nonlocal spent_s
        seconds, spent_s = spent_s, 0.0
        return seconds

    finite.is_finite = timed
    try:
        yield take
    finally:
        finite.is_finite = plain


def _result(
    trainings: dict[str, Training], steps_s: dict[str, list[float]], checks_s: dict[str, list[float]]
) -> Result:
    result = Result(title="refusing gradients that are not finite", unit="µs", rows=[], goals=[])
    for name, training in trainings.items():
        what = f"{name}, {training.replica.layout.length:,} parameters"
        shares = [100 * check / step for check, step in zip(checks_s[name], steps_s[name], strict=True)]
        result.rows += [
            Row(what=f"{what}: a step", rounds=[1e6 * s for s in steps_s[name]]),
            Row(what=f"{what}: its check", rounds=[1e6 * s for s in checks_s[name]]),
        ]
        result.goals.append(Goal(what=f"{what}: check, in % of a step", rounds=shares, at_most=1))
    return result


def _tasks() -> dict[str, pl.Task]:
    return {
        "the demo's CNN": pl.load_task(DIGITS),
        "MLP": _task(build_model, 784, SAMPLES),
        "large MLP, 64 samples": _task(lambda: _perceptron(LARGE), LARGE[0], 64),
        "large MLP, 256 samples": _task(lambda: _perceptron(LARGE), LARGE[0], 256),
    }


def _task(model: Callable[[], nn.Module], width: int, batch_size: int) -> pl.Task:
    chance = torch.Generator().manual_seed(0)
    data = (
        torch.randn(2 * batch_size, width, generator=chance),
        torch.randint(0, 10, (2 * batch_size,), generator=chance),
    )
    return pl.Task(
        model=model, data=data, loss=cross_entropy, optimizer=make_optimizer, batch_size=batch_size
    )


def _perceptron(widths: Sequence[int]) -> nn.Module:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
