"""A model that is too large for one worker: each worker gets 185 MB, and all-reduce needs 250.

With Adam in float32 a parameter takes 16 bytes: itself, its gradient, and two values of Adam's state. In `all-reduce`
each worker has all of them. In `zero:stage=3` each worker has a shard, in `pipeline` some of the layers.

python examples/too_big_for_one.py
"""

import resource
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.errors import OutOfMemoryError

WIDTH, LAYERS = 1024, 12
MEMORY_BYTES = 185_000_000  # limit of a worker, in addition to Python and torch
STRATEGIES = ("all-reduce:algorithm=ring", "zero:stage=3", "pipeline")


def model() -> nn.Module:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def sums() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :8].sum(dim=1, keepdim=True)


class LimitedLoss:
    """The mean squared error. The task is pickled for each worker, and unpickling this object limits the memory.

    The limit therefore applies in the workers from the start, but not in this process.
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return limited_loss, (MEMORY_BYTES,)


def limited_loss(more_bytes: int) -> LimitedLoss:
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # memory of Python and torch
    limit_bytes = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    return LimitedLoss()


task = pl.Task(
    model=model,
    data=sums,
    loss=LimitedLoss(),
    optimizer=partial(torch.optim.Adam, lr=1e-4),
    batch_size=64,
)


def main(steps: int = 4) -> None:
    count = sum(parameter.numel() for parameter in model().parameters())
    print(f"{count / 1e6:.1f} million parameters: {16 * count / 1e6:.0f} MB to train")
    for strategy in STRATEGIES:
        try:
            run = pl.train(task, strategy, pl.Local(workers=4, threads=1), steps=steps)
        except OutOfMemoryError as error:
            print(f"{strategy}: {str(error).splitlines()[0]}")
        else:
            most = max(held["total"] for held in run.memory)
            learned = f"loss {run.history[0].loss:.3f} to {run.loss:.3f} in {run.steps} steps"
            print(f"{strategy}: {learned}; no worker held more than {most / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
