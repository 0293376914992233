"""Steps of a model of large matrix products in float32, bfloat16 and float16: alone, by two workers, and over a link.

The processor must have instructions for 16 bits (AVX-512 bf16, AMX) to be faster with them. Without these, torch
converts to float32 and back. Rounds alternate between the precisions, so that other load counts for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds

PRECISIONS = ("fp32", "bf16", "fp16")
SIDE = 1024
LAYERS = 3
SAMPLES = 64  # of each worker
STEPS = 4
ROUNDS = 3
LIMIT_S = 60.0
LINK = pl.Link(bandwidth="100Mbps", latency="50us")
PARTS = {
    "single": ("single", pl.Local(workers=1, threads=1)),
    "shared": ("all-reduce", pl.Local(workers=2, threads=1)),
    "link": ("all-reduce", pl.Local(workers=2, threads=1, link=LINK)),
}
_WORDS = {
    "single": "single, 1 thread",
    "shared": "all-reduce, 2 workers in shared memory",
    "link": f"all-reduce, 2 workers, {LINK}",
}
_FLAGS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def measure(parts: Sequence[str] = tuple(PARTS)) -> Result:
    """Measure some parts: single, shared, link."""
    result = Result(title=f"seconds of a step, {LAYERS} layers of {SIDE}", unit="s", rows=[], goals=[])
    seconds: dict[tuple[str, str], list[float]] = {(p, each): [] for p in parts for each in PRECISIONS}
    for _ in rounds(ROUNDS, LIMIT_S):
        for (name, precision), found in seconds.items():
            strategy, cluster = PARTS[name]
            run = pl.train(_task(precision, cluster.workers), strategy, cluster, steps=STEPS)
            found.append(run.step_seconds)
    rows = {key: Row(what=f"{_WORDS[key[0]]}, {key[1]}", rounds=found) for key, found in seconds.items()}
    result.rows += rows.values()
    for name in parts:
        for precision in PRECISIONS[1:]:
            bound = 0.6 if (name, precision) == ("link", "bf16") else None
            ratio = compare(rows[name, precision], rows[name, "fp32"])
            what = f"{_WORDS[name]}: {precision} / fp32"
            result.goals.append(Goal(what=what, rounds=ratio, at_most=bound))
    result.notes.append(f"16-bit instructions of this processor: {', '.join(_instructions()) or 'none'}")
    return result


def _task(precision: str, workers: int) -> pl.Task:
    generator = torch.Generator().manual_seed(0)
    return pl.Task(
        model=_model,
        data=torch.utils.data.TensorDataset(
            torch.randn(4 * SAMPLES * workers, SIDE, generator=generator),
            torch.randint(0, 10, (4 * SAMPLES * workers,), generator=generator),
        ),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        batch_size=SAMPLES * workers,
        precision=precision,
    )


def _model() -> nn.Module:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(SIDE, SIDE), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(SIDE, 10))


def _instructions() -> list[str]:
    """Return the processor's instructions for 16 bits. Empty if the system does not list them."""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return []
    return [each for each in _FLAGS if each in words]
