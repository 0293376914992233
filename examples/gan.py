"""A GAN that learns eight spots on a circle: two models, two optimizers, and a step that yields.

The discriminator is updated first, then the generator, which uses the updated discriminator. These are separate
updates with every strategy: a run of 1,200 updates makes 600 of each model.

    python examples/gan.py
    paceline train examples/gan.py --strategy sync --workers 2 --steps 1200
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

SPOTS = 8
NOISE = 2
NEAR = 0.25  # less than half the distance between two spots


def centres() -> Tensor:
    angles = torch.arange(SPOTS) * (2 * math.pi / SPOTS)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def points() -> tuple[Tensor]:
    """Return the points that the generator should imitate."""
    generator = torch.Generator().manual_seed(0)
    spots = centres()[torch.randint(SPOTS, (4096,), generator=generator)]
    return (spots + 0.05 * torch.randn(4096, 2, generator=generator),)


def noise() -> tuple[Tensor]:
    """Return the noise for the evaluation of the generator."""
    return (torch.randn(1024, NOISE, generator=torch.Generator().manual_seed(1)),)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def step(model: nn.ModuleDict, batch: list[Tensor]):
    """Yield one loss after the other, as functions, so that each is computed only in its own turn."""
    (real,) = batch
    fake = model["g"](torch.randn(len(real), NOISE))
    softplus = nn.functional.softplus
    yield "d", lambda: softplus(-model["d"](real)).mean() + softplus(model["d"](fake.detach())).mean()
    yield "g", lambda: softplus(-model["d"](fake)).mean()


def distances(fakes: Tensor) -> Tensor:
    return torch.cdist(fakes, centres())


def near(fakes: Tensor, _: None) -> float:
    """Return the fraction of fakes that are near a spot."""
    return float((distances(fakes).amin(dim=1) < NEAR).float().mean())


def spots_found(fakes: Tensor, _: None) -> float:
    """Return the number of spots that have at least one fiftieth of the fakes near them."""
    shares = (distances(fakes) < NEAR).float().mean(dim=0)
    return float((shares > 0.02).sum())


adam = partial(torch.optim.Adam, lr=1e-3, betas=(0.5, 0.9))

task = pl.Task(
    model={"g": partial(network, NOISE, 2), "d": partial(network, 2, 1)},
    data=points,
    step=step,
    turns=("d", "g"),
    optimizer={"g": adam, "d": adam},
    batch_size=256,
    test=noise,
    predict=lambda model, batch: model["g"](batch[0]),
    metric={"near a spot": near, "spots found": spots_found},
)


def main() -> None:
    keep = pl.callbacks.KeepBest()
    run = pl.train(task, "all-reduce", pl.Local(workers=2), steps=1200, evaluate_every=200, callbacks=[keep])
    for record in run.history:
        if record.metric is not None:
            losses = f"g {record.extra['g_loss']:.3f}"
            found = f"{record.metric:.0%} near a spot, {record.extra['spots found']:.0f} of {SPOTS} spots"
            print(f"update {record.step:5}: {losses}; {found}")
    print(f"best: {keep.metric:.0%} at update {keep.step}")


if __name__ == "__main__":
    main()
