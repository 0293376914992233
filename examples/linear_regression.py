"""Linear regression with a known answer: the least-squares solution.

The loss of one sample is (x·w - y)² / 2, so its gradient is (x·w - y) x. Each step uses all samples, so the steps
converge to the answer, and the distance printed at the end is only rounding.

    python examples/linear_regression.py
"""

from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

SAMPLES, FEATURES, NOISE = 512, 8, 0.1


def samples() -> tuple[Tensor, Tensor]:
    """Return inputs, and noisy outputs of a hidden weight vector, in double precision to show small distances."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES, generator=chance, dtype=torch.float64)
    w = torch.randn(FEATURES, 1, generator=chance, dtype=torch.float64)
    return x, x @ w + NOISE * torch.randn(SAMPLES, 1, generator=chance, dtype=torch.float64)


def half_squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean() / 2


x, y = samples()

task = pl.Task(
    model=partial(nn.Linear, FEATURES, 1, bias=False, dtype=torch.float64),
    data=(x, y),
    loss=half_squared_error,
    optimizer=partial(torch.optim.SGD, lr=0.5),
    batch_size=SAMPLES,
)


def main() -> None:
    run = pl.train(task, "all-reduce", pl.Local(workers=4), steps=100)
    answer = torch.linalg.lstsq(x, y).solution
    distance = (run.parameters - answer.flatten()).norm().item()
    print(f"steps                            {run.steps}")
    print(f"seconds                          {run.seconds:.2f}")
    print(f"loss, first and last             {run.history[0].loss:.6f}, {run.history[-1].loss:.6f}")
    print(f"distance to the least squares    {distance:.1e}")


if __name__ == "__main__":
    main()
