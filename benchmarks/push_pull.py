"""Seconds in which 3 workers push a gradient of 4 MiB each and pull 4 MiB of parameters each, on one machine.

Ours are the strategies `async` and `sync`, as `pl.train` runs them, through shared memory and over TCP on loopback, but
that workers write their gradient instead of computing it. The baselines: a parameter server on Gloo's `send` and
`recv`, that of Ray's documentation, and a leaner one on Ray. All have one server, which takes a plain SGD step with the
gradient of each worker (async) or with the mean of all (sync); one thread a process. Ours weighs gradients by samples,
updates by torch's optimizer, and keeps a history and a trace; Gloo's and the leaner one on Ray update by a pass or two
over memory.

For `async` there is also a server on Gloo that listens to all workers beforehand and serves them in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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

__all__ = ["measure"]

ROUNDS = 9
LIMIT_S = 90.0
EXCHANGES = 50  # in a block: how often each worker pushes and pulls
WARM_UP = 10  # of them, in which caches fill and memory is touched for the first time
OURS, TCP, GLOO, RAY, LEAN_RAY = "ours", "ours over TCP", "Gloo", "Ray", "Ray, leaner"
AIMS = {
    OURS: {GLOO: 2.0, RAY: 5.0, LEAN_RAY: None},
    TCP: {GLOO: 1.0, RAY: 3.0, LEAN_RAY: None},
}
INSTALL_RAY = "pip install -c constraints.txt -e '.[ray]'"

Block = Callable[[], Served]


def measure() -> Result:
    result = Result(
        title=f"ms in which {WORKERS} workers push and pull 4 MiB each", unit="ms", rows=[], goals=[]
    )
    with contextlib.ExitStack() as stack:
        gloo = stack.enter_context(GlooServer())
        blocks: dict[tuple[str, str], Block] = {}
        for kind in (ASYNC, SYNC):
            blocks[OURS, kind] = partial(_run_ours, kind, "shared-memory")
            blocks[TCP, kind] = partial(_run_ours, kind, "tcp")
            blocks[GLOO, kind] = partial(gloo.run, kind, EXCHANGES)
        blocks[GLOO, IN_TURN] = partial(gloo.run, IN_TURN, EXCHANGES)
        blocks |= _ray_blocks(stack, result)
        measured = _take_turns(blocks)
    for kind in (ASYNC, SYNC):
        _compare(kind, measured, result)
    return result


def _ray_blocks(stack: contextlib.ExitStack, result: Result) -> dict[tuple[str, str], Block]:
    try:
        from benchmarks.ray_server import RayServer
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        result.unmeasured.append(f"Ray, which is not installed: {INSTALL_RAY}")
        return {}
    ray = stack.enter_context(RayServer())
    return {
        (name, kind): partial(ray.run, kind, EXCHANGES, is_lean=name == LEAN_RAY)
        for kind in (ASYNC, SYNC)
        for name in (RAY, LEAN_RAY)
    }


class _EffortlessModel:
    """A worker's model whose gradient, all ones, is there at once."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def compute(self, batch: Batch, *, weight: float = 1.0) -> float:
        self._model.gradient.fill_(weight)
        return 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Effortless:
    """A worker's context with such a model."""

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


def _run_ours(kind: str, link: str) -> Served:
    task = pl.Task(model=Vector, data=make_data, loss=mse_loss, optimizer=make_optimizer, batch_size=WORKERS)
    strategy = EffortlessAsync() if kind == ASYNC else EffortlessSync()
    updates = EXCHANGES * WORKERS if kind == ASYNC else EXCHANGES
    run = pl.train(task, strategy, pl.Local(workers=WORKERS, link=link), steps=updates)
    return Served([record.seconds for record in run.history], run.parameters)


def _take_turns(blocks: dict[tuple[str, str], Block]) -> dict[tuple[str, str], list[float]]:
    """One block of each a round, beginning with another one each time, so that none profits from its place."""
    measured: dict[tuple[str, str], list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for block in blocks.values():  # starts what starts by itself when it is first used
        block()
    for number in rounds(ROUNDS, LIMIT_S):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            measured[name].append(1e3 * blocks[name]().seconds(EXCHANGES, WARM_UP))
    return measured


def _compare(kind: str, measured: dict[tuple[str, str], list[float]], result: Result) -> None:
    rows = {
        who: Row(what=f"{kind}: {who}", rounds=ms) for (who, what), ms in measured.items() if what == kind
    }
    result.rows += rows.values()
    for ours, aims in AIMS.items():
        for who, aim in aims.items():
            if who in rows:
                ratios = compare(rows[who], rows[ours])
                result.goals.append(Goal(what=f"{kind}: {who} / {ours}", rounds=ratios, at_least=aim))
    if kind == ASYNC:
        in_turn = Row(what=f"{kind}: {GLOO}, workers in turn", rounds=measured[GLOO, IN_TURN])
        result.rows.append(in_turn)
        result.goals.append(
            Goal(what=f"{kind}: {GLOO}, workers in turn / ours", rounds=compare(in_turn, rows[OURS]))
        )
