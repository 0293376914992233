"""The ledger, compared with the memory of the processes of a run.

A layer measures the memory of its process whenever it is computed. The peak is between forward and backward pass.
The memory of Python, torch and the links is measured with a small model and subtracted. A process has also mapped
the model as it came with the task, as far as it has looked at it, which the ledger leaves out: see docs/memory.md.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

LAYERS, RANKS = 12, 4
WIDTH, SAMPLES = 140_000, 64  # tensors of 36 MB: memory that goes back to the system when it is freed


class Look(nn.Module):
    """A layer that returns its input, and records the memory of its process."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def forward(self, x):
        lines = Path("/proc/self/status").read_text().splitlines()
        held = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
        with open(Path(self.folder) / str(os.getpid()), "a") as out:
            out.write(f"{held * 1024}\n")
        return x


class LookBack(nn.Module):
    """A layer that returns its input, and records the peak memory of its process."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def forward(self, x):
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        (Path(self.folder) / str(os.getpid())).write_text(str(peak * 1024))
        return x


def task_of(folder, width, stages):
    def model():
        pairs = [
            (nn.Linear(SAMPLES, width), nn.ReLU(), nn.Linear(width, SAMPLES), Look(folder))
            for _ in range(stages)
        ]
        return nn.Sequential(*(layer for pair in pairs for layer in pair))

    data = torch.ones(4 * SAMPLES, SAMPLES), torch.ones(4 * SAMPLES, SAMPLES)
    momentum = {"lr": 1e-6, "momentum": 0.9}
    return pl.Task(
        model=model,
        data=data,
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, **momentum),
        batch_size=2 * SAMPLES,
    )


def peaks(folder, width, spec, stages):
    """Return the ledger's figure and the measured memory of each rank."""
    folder.mkdir()
    run = pl.train(task_of(str(folder), width, stages), spec, pl.Local(workers=2, threads=1), steps=3)
    seen = sorted(folder.iterdir())
    assert len(seen) == 2, "a file for each rank"
    return run.memory, [max(map(int, file.read_text().split())) for file in seen]


def check(tmp_path, spec, stages, *, looked_at):
    """`looked_at`: of each rank, the part of the model as it came that it has looked at."""
    large, seen_large = peaks(tmp_path / "large", WIDTH, spec, stages)
    small, seen_small = peaks(tmp_path / "small", 64, spec, stages)
    as_it_came = stages * 4 * 2 * SAMPLES * WIDTH
    mapped = (int(part * as_it_came) for part in looked_at)
    told = sorted(a["total"] - b["total"] + c for a, b, c in zip(large, small, mapped, strict=True))
    seen = sorted(a - b for a, b in zip(sorted(seen_large), sorted(seen_small), strict=True))
    for one, other in zip(told, seen, strict=True):
        assert 0.8 * one < other < 1.25 * one, (told, seen)


def test_the_ledger_of_all_reduce_with_messages_is_about_what_its_processes_take(tmp_path):
    check(tmp_path, "all-reduce:algorithm=ring", 1, looked_at=(1, 1))


@pytest.mark.slow
def test_the_ledger_of_a_pipeline_is_about_what_its_processes_take(tmp_path):
    check(tmp_path, "pipeline:order=gpipe,microbatches=2,cuts=4", 2, looked_at=(1, 0.5))


def peaks_at_the_start(folder, width):
    """Of each rank of zero:stage=3, until it computes its first batch."""
    folder.mkdir()
    inputs = torch.ones(8, width)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    task = pl.Task(
        model=nn.Sequential(LookBack(str(folder)), *layers),
        data=(inputs, inputs),
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        batch_size=8,
    )
    pl.train(task, "zero:stage=3", pl.Local(workers=RANKS, threads=1), steps=1)
    return sorted(int(file.read_text()) for file in folder.iterdir())


@pytest.mark.slow
def test_a_rank_of_zero_begins_with_its_shards_and_not_with_the_whole_model(tmp_path):
    large, small = peaks_at_the_start(tmp_path / "large", 1024), peaks_at_the_start(tmp_path / "small", 16)
    assert len(large) == len(small) == RANKS
    model_bytes = 4 * LAYERS * 1024**2
    # For each rank: the pages read from the initial model, its parameters and their window, its gradient, and
    # segments. With the whole model and its gradient it was three times the model.
    assert max(large) - min(small) < 1.9 * model_bytes, (large, small)
