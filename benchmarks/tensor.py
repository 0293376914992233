"""Time of a step with matrices split among 2 workers: ours against DTensor on Gloo, and without communication.

Both use the same transformer, plain SGD and one thread per worker. Attention is written so that DTensor can split
it. Both split the same columns, rows and heads. Without communication each worker has a model with half the heads
and half the columns, and sums nothing.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import paceline as pl
from benchmarks.plain_torch import PlainTorch, join, obey
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from benchmarks.transformer import make_sentences, token_loss

WORKERS, SAMPLES = 2, 8
LAYERS, WIDTH, HEAD, HEADS, LENGTH, WORDS = 6, 384, 64, 6, 64, 512
DTENSOR, APART = "DTensor", "no communication"
ROUNDS, LIMIT_S = 7, 90.0
STEPS, WARM_UP = 8, 2


class Block(nn.Module):
    """A transformer layer with 1/`parts` of the heads and of the columns."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        own, wide = WIDTH // parts, 4 * WIDTH // parts
        self.before_attention, self.before_body = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, own) for _ in range(3))
        self.out = nn.Linear(own, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before_attention(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.before_body(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, parts: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block(parts) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, sentences: Tensor) -> Tensor:
        x = self.words(sentences) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def build_model() -> nn.Module:
    """Return a model with about 11 million parameters."""
    return Transformer()


def measure() -> Result:
    title = "ms a step of an 11-million-parameter transformer, split among 2 workers"
    result = Result(title=title, unit="ms", rows=[], goals=[])
    measured: dict[str, list[float]] = {}
    with PlainTorch(WORKERS, _serve) as theirs:
        blocks: dict[str, Callable[[], float]] = {
            "ours": lambda: _run_ours(f"tensor:size={WORKERS}", WORKERS),
            DTENSOR: lambda: _typical(theirs.run(DTENSOR, STEPS)[-1]),
            APART: lambda: max(map(_typical, theirs.run(APART, STEPS))),
            "one worker": lambda: _run_ours("single", 1),
        }
        for number in rounds(ROUNDS, LIMIT_S):
            names = list(blocks)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                measured.setdefault(name, []).append(1e3 * blocks[name]())
    rows = {name: Row(what=name, rounds=measured[name]) for name in blocks}
    result.rows += rows.values()
    goal = compare(rows["ours"], rows[DTENSOR])
    result.goals.append(Goal(what="ours / DTensor's", rounds=goal, at_most=0.6))
    result.goals.append(Goal(what="ours / no communication", rounds=compare(rows["ours"], rows[APART])))
    result.goals.append(Goal(what="ours / one worker", rounds=compare(rows["ours"], rows["one worker"])))
    return result


def _make_optimizer(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _run_ours(spec: str, workers: int) -> float:
    task = pl.Task(
        model=build_model,
        data=make_sentences,
        loss=token_loss,
        optimizer=_make_optimizer,
        batch_size=SAMPLES,
    )
    run = pl.train(task, spec, pl.Local(workers=workers, threads=1), steps=STEPS)
    return _typical([record.seconds for record in run.history])


def _typical(ends_s: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends_s[WARM_UP:]))


class _Trainer:
    """Training in one process."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._optimizer = _make_optimizer(list(model.parameters()))
        self._words, self._targets = make_sentences()

    def run(self, steps: int) -> list[float]:
        ends_s = []
        for step in range(steps):
            chosen = slice(step % 8 * SAMPLES, (step % 8 + 1) * SAMPLES)
            self._optimizer.zero_grad()
            loss = token_loss(self._model(self._words[chosen]), self._targets[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            loss.item()
            ends_s.append(time.monotonic())
        return ends_s


def _parallel(workers: int) -> nn.Module:
    model = build_model()
    columns = ("query", "key", "value", "up")
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("out", "down")}
    for block in model.blocks:  # type: ignore[union-attr]
        parallelize_module(block, init_device_mesh("cpu", (workers,)), plan)
    return model


def _serve(rank: int, workers: int, meeting_point: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    join(rank, workers, meeting_point)
    obey(pipe, {DTENSOR: _Trainer(_parallel(workers)), APART: _Trainer(Transformer(workers))})
