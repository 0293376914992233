"""What every strategy is tried with: its variants, and the tasks. A strategy of the table is in the suite by itself."""

from functools import cache

import pytest
import torch
from tasks import numbers, perceptron, samples, simulated
from torch import nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.replica.batches import GlobalBatches, Samples
from paceline.strategies import STRATEGIES

VARIANTS = {
    "all-reduce": [
        "all-reduce:algorithm=ring",
        "all-reduce:algorithm=ring,bucket_mb=0.0001",  # a bucket or two for each layer
        "all-reduce:algorithm=shared",
    ],
    "sync": ["sync", "sync:servers=2", "sync:placement=worker", "sync:placement=all"],
    "decentralized": [
        "decentralized",
        "decentralized:topology=one-peer-exponential,overlap=no",
        "decentralized:order=adapt-then-combine",
        "decentralized:mode=async",
    ],
    "local-sgd": [
        "local-sgd:period=2",
        "local-sgd:period=3,averages=parameters+momentum,post_local=1",
    ],
    "diloco": ["diloco:period=2"],
    "fedavg": ["fedavg", "fedavg:epochs=2,batch=3,fraction=0.5,dropout=0.2"],
}
"""Where a strategy's name alone does not say which way it takes."""

ASYNCHRONOUS = frozenset({"k-sync", "k-batch-sync", "async", "k-async", "k-batch-async", "ssp", "hogwild"})
"""Strategies whose weights depend on which worker is quicker: left out where those of `single` are asked for."""

LOCAL = frozenset({"decentralized", "local-sgd", "diloco", "fedavg", "fedprox", "fedavgm", "fedadam"})
"""Strategies whose workers each have weights of their own for a while: not those of `single`, but the same in every
world, whoever is quicker."""

SPECS = [spec for name in STRATEGIES for spec in VARIANTS.get(name, [name])]
SYNCHRONOUS = [spec for spec in SPECS if spec.partition(":")[0] not in ASYNCHRONOUS | LOCAL | {"single"}]
SYNCHRONOUS.append("local-sgd:post_local=99,algorithm=ring")
REPRODUCIBLE = SYNCHRONOUS + [
    spec for spec in SPECS if spec.partition(":")[0] in LOCAL and "mode=async" not in spec
]
"""Strategies whose weights depend on nothing but the task and the seed."""

SHARING_MEMORY = ("all-reduce:algorithm=shared", "hogwild")
"""What only ranks of one host can do."""
PASSING_MESSAGES = [spec for spec in SPECS if spec not in SHARING_MEMORY]

LINEAR = [
    "local-sgd:period=1",
    "local-sgd:period=1,averages=parameters+momentum",
    "diloco:period=1,outer_lr=1,outer_momentum=0",
    "decentralized:topology=complete,weights=uniform,order=adapt-then-combine",
]
"""Averages after every step: the weights of `single`, if an update is linear in its gradient."""
WORKERS = (1, 2, 3, 4)
STEPS = 5

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.01),
}


class Pairs(Dataset):
    """Samples that are made one by one, as a user's dataset does."""

    def __init__(self, dtype):
        self.inputs, self.targets = samples(dtype=dtype)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Tied(nn.Module):
    """Two layers that share a matrix, as the embedding and the output of a language model do."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.decode(torch.tanh(self.encode(x))))


class Sum(nn.Module):
    """Takes two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


def with_frozen_layer(dtype):
    model = perceptron(dtype)
    model[0].requires_grad_(False)
    return model


def with_unused_layer(dtype):
    model = perceptron(dtype)
    model[2].spare = nn.Linear(3, 3, dtype=dtype)
    return model


def grouped(optimizer):
    """Weights decay, biases do not and learn faster: groups whose parameters alternate in memory."""

    def make(model):
        weights = [p for p in model if p.ndim > 1]
        biases = [p for p in model if p.ndim == 1]
        return optimizer(
            [
                {"params": weights, "weight_decay": 0.1},
                {"params": biases, "weight_decay": 0.0, "lr": 0.2},
            ]
        )

    return make


CASES = {
    "plain": lambda dtype: {},
    "batch-not-divisible": lambda dtype: {"batch_size": 7},
    "fewer-samples-than-workers": lambda dtype: {"data": samples(25, dtype)},
    "param-groups": lambda dtype: {"optimizer": grouped},
    "clipping": lambda dtype: {"clip_norm": 0.05},
    "schedule": lambda dtype: {
        "schedule": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7**step)
    },
    "dataset": lambda dtype: {"data": Pairs(dtype)},
    "frozen-layer": lambda dtype: {"model": lambda: with_frozen_layer(dtype)},
    "unused-layer": lambda dtype: {"model": lambda: with_unused_layer(dtype)},
    "tied-weights": lambda dtype: {"model": lambda: Tied().to(dtype)},
    "two-inputs": lambda dtype: {
        "model": lambda: Sum().to(dtype),
        "data": (*samples(dtype=dtype), numbers(24, 2, seed=3, dtype=dtype)),
    },
}


def in_turn(cases, *axes):
    """Each case, a tuple, with one value of each axis, in turn: for processes, where every pair would take too long.

    If the lengths have no common divisor, then each value of an axis soon meets each of another.
    """
    return [(*case, *(list(axis)[n % len(axis)] for axis in axes)) for n, case in enumerate(cases)]


def one_in(few, cases):
    """Cases, tuples, of which `make test` takes one in so many, and `make test-all` the others.

    If `few` and the length of an axis have no common divisor, then those taken have each value of that axis.
    """
    return [
        pytest.param(*case, marks=[pytest.mark.slow] if n % few else [], id="-".join(map(str, case)))
        for n, case in enumerate(cases)
    ]


def make_task(case="plain", optimizer="sgd", dtype=torch.float64):
    changes = CASES[case](dtype)
    if case == "param-groups":
        changes["optimizer"] = grouped(OPTIMIZERS[optimizer])
    given = {
        "model": lambda: perceptron(dtype),
        "data": samples(dtype=dtype),
        "loss": nn.functional.mse_loss,
        "optimizer": OPTIMIZERS[optimizer],
        "batch_size": 8,
    }
    return pl.Task(**(given | changes))


@cache
def single(case="plain", optimizer="sgd", dtype=torch.float64):
    """The run that all others are held against."""
    return pl.train(make_task(case, optimizer, dtype), "single", simulated(1), steps=STEPS)


def train_plainly(task, steps=STEPS, seed=0, workers=1):
    """The parameters and buffers that a loop of plain PyTorch gives: the mean gradient of `workers` slices a step.

    Each slice passes the model in turn, from the same buffers; those that the first slice leaves are kept.
    """
    model, data = task.build_model(seed), Samples(task.build_data())
    optimizer = task.build_optimizer(model)
    schedule = task.build_schedule(optimizer)
    batches = GlobalBatches(data.length, task.batch_size, seed)
    for step in range(steps):
        for parameter in model.parameters():
            # A layer that takes no part has a gradient of zero, not none: weight decay acts on it all the same.
            parameter.grad = torch.zeros_like(parameter)
        whole = batches.indices(step)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for worker in reversed(range(workers)):
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            part = batches.slice(step, worker, workers).indices
            if len(part):
                inputs, target = data.fetch(part)
                (task.loss(model(*inputs), target) * (len(part) / len(whole))).backward()
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
    return trained, {name: buffer.clone() for name, buffer in model.named_buffers()}
