"""Milliseconds in which 3 workers push a gradient and pull the parameters, of 1 and of 4 MiB, on one machine.

Ours are the strategies `async` and `sync`, as `pl.train` runs them, through shared memory and over TCP on loopback,
except that workers write their gradient instead of computing it. The baselines are a parameter server on Gloo's `send`
and `recv`, the parameter server of Ray's documentation, and a leaner one on Ray. All have one server, which takes a
plain SGD step with the gradient of each worker (async) or with the mean of all (sync), and one thread per process. Ours
weights gradients by samples, updates with torch's optimizer, and records a history and a trace. Gloo's server and the
leaner one on Ray update with one or two passes over memory.

For `async` there is also a server on Gloo that posts receives for all workers in advance and serves them in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch.nn.functional import mse_loss

import paceline as pl
from benchmarks.gloo_server import IN_TURN, GlooServer
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from benchmarks.vector import (
    ASYNC,
    SYNC,
    WORKERS,
    Served,
    Vector,
    make_data,
    make_optimizer,
)
from paceline.context import Batch, Context, Model
from paceline.strategies.async_sgd import Async
from paceline.strategies.sync import Sync

ROUNDS = 9
LIMIT_S = 60.0  # time limit for each size
SIZES = {"1MiB": 2**18, "4MiB": 2**20}  # parameters, of four bytes each
PARTS = tuple(SIZES)
EXCHANGES = 50  # pushes and pulls of each worker in a block
WARM_UP = 10  # the first of them, in which caches fill and memory is allocated
OURS, TCP, GLOO, RAY, LEAN_RAY = "ours", "ours over TCP", "Gloo", "Ray", "Ray, leaner"
AIMS = {
    OURS: {GLOO: 2.0, RAY: 5.0, LEAN_RAY: None},
    TCP: {GLOO: 1.3, RAY: 3.0, LEAN_RAY: None},
}
INSTALL_RAY = "pip install -c constraints.txt -e '.[ray]'"

Block = Callable[[], Served]


def measure(parts: Sequence[str] = PARTS) -> Result:
    result = Result(title=f"ms in which {WORKERS} workers push and pull", unit="ms", rows=[], goals=[])
    for size in parts:
        measured = _measure_size(SIZES[size], result)
        for kind in (ASYNC, SYNC):
            _compare(f"{size}, {kind}", kind, measured, result)
    return result


def _measure_size(count: int, result: Result) -> dict[tuple[str, str], list[float]]:
    with contextlib.ExitStack() as stack:
        gloo = stack.enter_context(GlooServer(count))
        blocks: dict[tuple[str, str], Block] = {}
        for kind in (ASYNC, SYNC):
            blocks[OURS, kind] = partial(_run_ours, count, kind, "shared-memory")
            blocks[TCP, kind] = partial(_run_ours, count, kind, "tcp")
            blocks[GLOO, kind] = partial(gloo.run, kind, EXCHANGES)
        blocks[GLOO, IN_TURN] = partial(gloo.run, IN_TURN, EXCHANGES)
        blocks |= _ray_blocks(stack, count, result)
        return _take_turns(blocks)


def _ray_blocks(stack: contextlib.ExitStack, count: int, result: Result) -> dict[tuple[str, str], Block]:
    try:
        from benchmarks.ray_server import RayServer
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        missing = f"Ray, which is not installed: {INSTALL_RAY}"
        result.unmeasured += [missing] if missing not in result.unmeasured else []
        return {}
    ray = stack.enter_context(RayServer(count))
    return {
        (name, kind): partial(ray.run, kind, EXCHANGES, is_lean=name == LEAN_RAY)
        for kind in (ASYNC, SYNC)
        for name in (RAY, LEAN_RAY)
    }


class _EffortlessModel:
    """A worker's model with a gradient of ones that takes no time."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def compute(self, batch: Batch, *, weight: float = 1.0) -> float:
        self._model.gradient.fill_(weight)
        return 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Effortless:
    """A worker's context with that model."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.model = _EffortlessModel(ctx.model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class EffortlessAsync(Async):
    async def worker(self, ctx: Context) -> None:
        await Async.worker(self, cast(Context, _Effortless(ctx)))


@dataclass(frozen=True, kw_only=True, slots=True)
class EffortlessSync(Sync):
    async def worker(self, ctx: Context) -> None:
        await Sync.worker(self, cast(Context, _Effortless(ctx)))


def _run_ours(count: int, kind: str, link: str) -> Served:
    task = pl.Task(
        model=partial(Vector, count),
        data=make_data,
        loss=mse_loss,
        optimizer=make_optimizer,
        batch_size=WORKERS,
    )
    strategy = EffortlessAsync() if kind == ASYNC else EffortlessSync()
    updates = EXCHANGES * WORKERS if kind == ASYNC else EXCHANGES
    run = pl.train(task, strategy, pl.Local(workers=WORKERS, link=link), steps=updates)
    return Served([record.seconds for record in run.history], run.parameters)


def _take_turns(blocks: dict[tuple[str, str], Block]) -> dict[tuple[str, str], list[float]]:
    """Run one block of each per round, starting with another one each time, so that the order favours none."""
    measured: dict[tuple[str, str], list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for block in blocks.values():  # the first use starts some processes
        block()
    for number in rounds(ROUNDS, LIMIT_S):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            measured[name].append(1e3 * blocks[name]().seconds(EXCHANGES, WARM_UP))
    return measured


def _compare(title: str, kind: str, measured: dict[tuple[str, str], list[float]], result: Result) -> None:
    rows = {
        who: Row(what=f"{title}: {who}", rounds=ms) for (who, what), ms in measured.items() if what == kind
    }
    result.rows += rows.values()
    for ours, aims in AIMS.items():
        for who, aim in aims.items():
            if who in rows:
                ratios = compare(rows[who], rows[ours])
                result.goals.append(Goal(what=f"{title}: {who} / {ours}", rounds=ratios, at_least=aim))
    if kind == ASYNC:
        in_turn = Row(what=f"{title}: {GLOO}, workers in turn", rounds=measured[GLOO, IN_TURN])
        result.rows.append(in_turn)
        result.goals.append(
            Goal(what=f"{title}: {GLOO}, workers in turn / ours", rounds=compare(in_turn, rows[OURS]))
        )
