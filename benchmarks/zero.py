"""Time of a ZeRO step: ours against FSDP2 (`fully_shard`) on Gloo, and against no communication.

Both use the same transformer and batch, Adam, one thread per worker, and shard layer by layer. The batch is small, so
that communication matters: with a larger batch, more of a step is the same computation on both sides. Batches of
8 sentences gave ratios of 0.52 to 0.74 on a quiet machine. Batches of 32 sentences, as in the other benchmarks, gave
0.73 to 0.90 on a busy one.

The model is cut into segments, or it runs uncut with hooks of its modules, like a model that cannot be traced.

Stage 3 is plain `fully_shard`. With `reshard_after_forward=False` parameters stay in memory until the backward pass has
used them. This sends as much as stage 2, but does not keep the parameters between steps. FSDP2 needs no special options
for Gloo in torch 2.13: if a group cannot compute a mean, it sums and divides.

Without communication, all workers compute the gradient of their slice and update their share of the parameters at the
same time. This is the computation of ZeRO without anything else. With the same kernels, no ratio to FSDP2's step can be
lower.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import paceline as pl
from benchmarks.plain_torch import ALONE, PlainTorch, join, obey
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from benchmarks.transformer import build_transformer, make_sentences, token_loss

WORKERS, STAGES = (2, 4), (2, 3)
BATCH = 8
ROUNDS, LIMIT_S = 7, 150.0
STEPS, WARM_UP = 8, 2


def measure() -> Result:
    result = Result(title="ms a step of an 11-million-parameter transformer", unit="ms", rows=[], goals=[])
    measured: dict[str, list[float]] = {}
    with ExitStack() as stack:
        blocks: dict[str, Callable[[], float]] = {}
        for workers in WORKERS:
            blocks |= _blocks(workers, stack.enter_context(PlainTorch(workers, _serve)))
        for number in rounds(ROUNDS, LIMIT_S):
            names = list(blocks)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                measured.setdefault(name, []).append(1e3 * blocks[name]())
    rows = {name: Row(what=name, rounds=measured[name]) for name in blocks}
    result.rows += rows.values()
    for workers, stage in itertools.product(WORKERS, STAGES):
        ours, theirs = rows[_ours(workers, stage)], rows[_torchs(workers, stage)]
        alone, what = rows[_alone(workers)], f"{workers} workers, stage {stage}:"
        result.goals.append(Goal(what=f"{what} ours / FSDP2's", rounds=compare(ours, theirs), at_most=0.6))
        result.goals.append(Goal(what=f"{what} no communication / FSDP2's", rounds=compare(alone, theirs)))
        result.goals.append(Goal(what=f"{what} ours / no communication", rounds=compare(ours, alone)))
        hooked = rows[_ours(workers, stage, hooks=True)]
        goal = 0.7 if stage == 3 else None
        result.goals.append(
            Goal(what=f"{what} hooks / FSDP2's", rounds=compare(hooked, theirs), at_most=goal)
        )
        result.goals.append(Goal(what=f"{what} hooks / segments", rounds=compare(hooked, ours)))
    result.notes += [_sent(workers, stage) for workers in WORKERS for stage in STAGES]
    return result


def _blocks(workers: int, theirs: PlainTorch) -> dict[str, Callable[[], float]]:
    blocks: dict[str, Callable[[], float]] = {_alone(workers): lambda: _typical(theirs.run(ALONE, STEPS)[-1])}
    for stage in STAGES:
        for hooks in (False, True):
            name = _ours(workers, stage, hooks=hooks)
            blocks[name] = lambda stage=stage, hooks=hooks: _run_ours(workers, stage, hooks)  # type: ignore[misc]
        blocks[_torchs(workers, stage)] = lambda stage=stage: _typical(theirs.run(str(stage), STEPS)[-1])  # type: ignore[misc]
    return blocks


def _alone(workers: int) -> str:
    return f"{workers} workers, no communication"


def _ours(workers: int, stage: int, *, hooks: bool = False) -> str:
    return f"{workers} workers, ours, stage {stage}{', hooks' if hooks else ''}"


def _torchs(workers: int, stage: int) -> str:
    return f"{workers} workers, FSDP2, stage {stage}"


def _run_ours(workers: int, stage: int, hooks: bool) -> float:
    spec = f"zero:stage={stage}{',hooks=true' if hooks else ''}"
    run = pl.train(_task(), spec, pl.Local(workers=workers, threads=1), steps=STEPS)
    return _typical([record.seconds for record in run.history])


def _sent(workers: int, stage: int) -> str:
    """Return the traffic of a step, counted in a run with messages: shared memory sends none."""
    bytes_sent = [_bytes_sent(workers, stage, steps) for steps in (1, 2)]
    count = sum(parameter.numel() for parameter in build_transformer().parameters())
    elements = (bytes_sent[1] - bytes_sent[0]) / 4 / workers
    share = elements / count / (workers - 1) * workers
    return (
        f"{workers} workers, stage {stage}: {elements / 1e6:.1f} million elements sent by each worker in a step, "
        f"{share:.2f} (n - 1)/n of the parameters"
    )


def _bytes_sent(workers: int, stage: int, steps: int) -> int:
    cluster = pl.Simulated(workers=workers, compute=pl.times.Constant("1s"), math="none")
    return sum(pl.train(_task(), f"zero:stage={stage}", cluster, steps=steps).bytes_sent)


def _task() -> pl.Task:
    return pl.Task(
        model=build_transformer,
        data=make_sentences,
        loss=token_loss,
        optimizer=_make_optimizer,
        batch_size=BATCH,
    )


def _make_optimizer(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _typical(ends_s: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends_s[WARM_UP:]))


class _Trainer:
    """The model of one process: unsharded, or sharded by FSDP2."""

    def __init__(self, rank: int, workers: int, model: nn.Module, share: float = 1.0) -> None:
        """`share` is the fraction of the parameters that is updated."""
        self._model = model
        self._optimizer = _make_optimizer(_first(list(model.parameters()), share))
        self._words, self._targets = make_sentences()
        self._slice = (rank * BATCH // workers, (rank + 1) * BATCH // workers)

    def run(self, steps: int) -> list[float]:
        ends_s = []
        for step in range(steps):
            first, last = (step % 8 * BATCH + end for end in self._slice)
            self._model.zero_grad()
            loss = token_loss(self._model(self._words[first:last]), self._targets[first:last])
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            loss.item()  # Paceline reports every loss too
            ends_s.append(time.monotonic())
        return ends_s


def _first(parameters: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
    """Return the first parameters that together have about `share` of all elements."""
    ends = itertools.accumulate(parameter.numel() for parameter in parameters)
    most = share * sum(parameter.numel() for parameter in parameters)
    return [parameter for parameter, end in zip(parameters, ends, strict=True) if end <= most]


def _sharded(workers: int, stage: int) -> nn.Module:
    model = build_transformer()
    mesh = init_device_mesh("cpu", (workers,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    return model


def _serve(rank: int, workers: int, meeting_point: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    # FSDP warns that outputs must not be changed in place, which does not happen here.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    join(rank, workers, meeting_point)
    trainers = {str(stage): _Trainer(rank, workers, _sharded(workers, stage)) for stage in STAGES}
    alone = _Trainer(rank, workers, build_transformer(), share=1 / workers)
    obey(pipe, {ALONE: alone, **trainers})
