"""A tiny GAN for tests, and the loop that a user of plain PyTorch would write for it."""

import torch
from tasks import numbers
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches

SAMPLES, BATCH = 20, 6
REAL, NOISE = numbers(SAMPLES, 2, seed=5) + 2, numbers(SAMPLES, 3, seed=6)
OPTIMIZERS = {
    "g": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
    "d": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
}


def generator():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def generator_with_batch_norm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def discriminator():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def is_real(logits):
    return nn.functional.softplus(-logits).mean()


def is_fake(logits):
    return nn.functional.softplus(logits).mean()


def step(model, batch):
    real, noise = batch
    fake = model["g"](noise)
    yield "d", is_real(model["d"](real)) + is_fake(model["d"](fake.detach()))
    judged = model["d"](fake)
    yield "g", {"loss": is_real(judged), "fooled": judged.sigmoid().mean()}


def a_gan(**changes):
    given = {
        "model": {"g": generator, "d": discriminator},
        "data": (REAL, NOISE),
        "step": step,
        "turns": ("d", "g"),
        "optimizer": OPTIMIZERS,
        "batch_size": BATCH,
    }
    return pl.Task(**(given | changes))


def alternate(task, batches, seed=0):
    """Return the model after some global batches of a plain loop.

    It updates d first, then g, which uses the new d.
    """
    model = task.build_model(seed)
    optimizers = {name: make(model[name].parameters()) for name, make in task.optimizer.items()}
    order = GlobalBatches(SAMPLES, BATCH, seed)
    for number in range(batches):
        chosen = torch.from_numpy(order.indices(number))
        fake = model["g"](NOISE[chosen])
        optimizers["d"].zero_grad()
        (is_real(model["d"](REAL[chosen])) + is_fake(model["d"](fake.detach()))).backward()
        optimizers["d"].step()
        optimizers["g"].zero_grad()
        is_real(model["d"](fake)).backward()
        optimizers["g"].step()
    return model


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
