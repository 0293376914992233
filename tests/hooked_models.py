"""Modules that torch.export cannot trace, or that use their parameters in unusual ways. They treat samples alone."""

import random

import torch
from gans import a_gan
from tasks import a_task, samples
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

__all__ = ["ROUNDED", "TASKS", "Looking", "Routed", "linears", "task_of", "tree"]


class Routed(nn.Module):
    """An expert for each kind of sample. Ranks with different samples call different experts."""

    def __init__(self, experts=4):
        super().__init__()
        self.into = nn.Linear(4, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = torch.tanh(self.into(x)) * self.scale
        chosen = (x[:, 0] * 3).long().abs() % len(self.experts)
        made = torch.zeros_like(h)
        for number in chosen.unique().tolist():
            made[chosen == number] = self.experts[number](h[chosen == number])
        return self.head(made)


class Branching(nn.Module):
    """Two branches of different lengths. The order of blocks depends on the samples."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        is_large = x[:, 0] > 0.3
        made = torch.zeros_like(x)
        if is_large.any():
            made[is_large] = self.blocks[0](x[is_large])
        if not is_large.all():
            made[~is_large] = self.blocks[1](torch.tanh(self.blocks[2](x[~is_large])))
        return self.head(made)


class Looking(nn.Module):
    """A model that cannot be traced."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        if float(x.abs().max()) > 1e9:
            raise ValueError("too large")
        for block in self.blocks:
            x = torch.tanh(self.call(block, x))
        return x[:, :2]

    def call(self, block, x):
        return block(x)


class Twice(Looking):
    def call(self, block, x):
        return block(torch.tanh(block(x)))


class Checkpointed(Looking):
    def call(self, block, x):
        return checkpoint(block, x, use_reentrant=False)


class CheckpointedPairs(Looking):
    """A checkpoint around all blocks."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Reentrant(Looking):
    def call(self, block, x):
        return checkpoint(block, x.requires_grad_(), use_reentrant=True)


class Uncalled(Looking):
    """Uses the parameters of its blocks without calling them."""

    def call(self, block, x):
        return nn.functional.linear(x, block.weight, block.bias)


class Regions(Looking):
    def call(self, block, x):
        with torch.no_grad():
            scale = block(x).abs().mean(1, keepdim=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            return block(x) / (1 + scale)


class Autocast(Looking):
    def call(self, block, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return block(x.float()).double()


class Recurrent(Looking):
    def call(self, block, x):
        return block(x[:, None].expand(-1, 3, -1))[0][:, -1]


class Attentive(Looking):
    def call(self, block, x):
        return block(x[:, None].expand(-1, 3, -1))[:, -1]


class Scaled(torch.autograd.Function):
    """Keeps a parameter for backward, and changes the gradient in a way that is not linear."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (gradient * weight).clamp(-1, 1), (gradient * x).sum(0)


class OwnFunction(Looking):
    def __init__(self):
        super().__init__(*(nn.Linear(4, 4) for _ in range(3)))
        self.weight = nn.Parameter(torch.ones(4))

    def call(self, block, x):
        return Scaled.apply(block(x), self.weight)


class Functional(Looking):
    """Functions of torch.func refuse hooks of saved tensors."""

    def call(self, block, x):
        return block(x) + torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


class TwoTypes(Looking):
    def call(self, block, x):
        return block(x.to(block.weight.dtype)).double()


class WithLoss(Looking):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        return logits, (nn.functional.mse_loss(logits, labels) if labels is not None else None)


class Tied(Looking):
    """The first and the last block share a matrix."""

    def __init__(self):
        super().__init__(*(nn.Linear(4, 4) for _ in range(3)))
        self.blocks[2].weight = self.blocks[0].weight


class Node(nn.Module):
    """A random tree of blocks, called in different ways."""

    def __init__(self, rng, depth):
        super().__init__()
        self.weight = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4)) if rng.random() < 0.3 else None
        self.children_ = nn.ModuleList(Node(rng, depth - 1) for _ in range(rng.randint(1, 3) if depth else 0))
        self.way = rng.choice(["each", "routed", "twice", "checkpointed"])

    def forward(self, x):
        h = torch.tanh(self.weight(x))
        h = h if self.scale is None else h * self.scale
        if self.way == "routed" and len(self.children_):
            chosen, made = (x[:, 0] * 5).long().abs() % len(self.children_), torch.zeros_like(h)
            for number in chosen.unique().tolist():
                made[chosen == number] = self.children_[number](h[chosen == number])
            return made
        for child in self.children_:
            if self.way == "checkpointed":
                h = checkpoint(child, h, use_reentrant=False)
            else:
                h = child(child(h)) if self.way == "twice" else h + child(h)
        return h


def tree(seed):
    """A tree with a head. In some of them two blocks share a matrix."""
    model = nn.Sequential(Node(random.Random(seed), 3), nn.Linear(4, 2)).double()
    if seed % 3 == 0:
        model[0].children_[0].weight.weight = model[0].weight.weight
    return model


def linears(count=3):
    return [nn.Linear(4, 4) for _ in range(count)]


def frozen():
    model = Looking(*linears())
    model.blocks[1].requires_grad_(False)
    return model


def penalised(model, batch):
    """A step of the user's own: all parameters are in its loss."""
    inputs, targets = batch
    decay = sum(parameter.square().sum() for parameter in model.parameters())
    loss = nn.functional.mse_loss(model(inputs), targets)
    return {"loss": loss + 0.01 * decay, "decay": decay.detach()}


def two_types():
    blocks = linears()
    blocks[1].float()
    return TwoTypes(*(block.double() if number != 1 else block for number, block in enumerate(blocks)))


def rows():
    return [{"x": x, "label": y} for x, y in zip(*samples(), strict=True)]


def a_model(make, **changes):
    return lambda: a_task(model=lambda: make().double(), **changes)


def each(wrap):
    return lambda: Looking(*(wrap(block) for block in linears()))


TASKS = {
    "routed": a_model(Routed),
    "routed-clipped": a_model(Routed, clip_norm=0.05, batch_size=7),
    "branching": a_model(Branching),
    "twice": a_model(lambda: Twice(*linears())),
    "checkpointed": a_model(lambda: Checkpointed(*linears())),
    "checkpointed-pairs": a_model(lambda: CheckpointedPairs(*linears())),
    "reentrant": a_model(lambda: Reentrant(*linears())),
    "uncalled": a_model(lambda: Uncalled(*linears())),
    "regions": a_model(lambda: Regions(*linears())),
    "autocast": lambda: a_task(model=lambda: Autocast(*linears())),
    "recurrent": a_model(lambda: Recurrent(nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True))),
    "own-function": a_model(OwnFunction),
    "functional": a_model(lambda: Functional(*linears())),
    "weight-norm": a_model(each(parametrizations.weight_norm)),
    "spectral-norm": a_model(each(parametrizations.spectral_norm)),
    "attention": a_model(
        lambda: Attentive(*(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True) for _ in range(2)))
    ),
    "tied": a_model(Tied),
    "frozen": a_model(frozen),
    "two-types": lambda: a_task(model=two_types),
    "own-loss": a_model(lambda: WithLoss(*linears()), loss=None, data=rows()),
    "own-step": lambda: a_task(model=lambda: Routed().double(), loss=None, step=penalised),
    "moving-average": a_model(Routed, ema=0.9),
    "recomputed": a_model(lambda: Looking(*linears(5)), recompute=True),
    "accumulated": a_model(Routed, accumulate=3),
    "several-models": a_gan,
}
"""How to make the task of each kind of model."""


ROUNDED = {"autocast": 1e-6, "two-types": 1e-6}
"""Kinds that compute in fewer digits, and how close their weights are."""


def task_of(kind):
    return TASKS[kind]()
