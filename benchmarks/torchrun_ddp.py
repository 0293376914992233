"""Script for torchrun: DistributedDataParallel on Gloo with a checkpoint every ten steps, for the benchmark `elastic`.

    torchrun --nproc-per-node 4 --max-restarts 9 torchrun_ddp.py FOLDER STEPS

Rank 0 appends the number and the time of each step to FOLDER/steps. After a restart all ranks continue from the last
checkpoint. `FOLDER/kill` holds the number of a step: the last rank kills itself in the middle of it, once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.mlp import SAMPLES, build_model, make_data, make_optimizer

EVERY = 10


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.distributed.init_process_group("gloo")
    rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()
    images, labels = make_data(workers)
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model())
    optimizer = make_optimizer(model.parameters())
    first = _restore(folder / "checkpoint", model, optimizer)
    for step in range(first, steps):
        start = (step * workers + rank) * SAMPLES % len(images)
        loss = nn.functional.cross_entropy(
            model(images[start : start + SAMPLES]), labels[start : start + SAMPLES]
        )
        _die(folder / "kill", step, is_last=rank == workers - 1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0:
            _note(folder, step, model, optimizer)
    torch.distributed.destroy_process_group()


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    found = torch.load(path, weights_only=True)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return int(found["step"])


def _die(path: Path, step: int, *, is_last: bool) -> None:
    if is_last and path.exists() and int(path.read_text()) == step:
        path.unlink()
        (path.parent / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)


def _note(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with open(folder / "steps", "a") as file:
        file.write(f"{step} {time.monotonic()}\n")
    if (step + 1) % EVERY == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, folder / "checkpoint.new")
        os.replace(folder / "checkpoint.new", folder / "checkpoint")


if __name__ == "__main__":
    main()
