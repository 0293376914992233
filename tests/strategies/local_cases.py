"""Helpers for tests of strategies with local steps: the same algorithms as plain PyTorch loops."""

import copy
import itertools

import numpy as np
import torch
from tasks import numbers
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples


def labelled(count=60, **changes):
    """A small task with three labels, in double precision."""
    inputs = numbers(count, 4, seed=1)
    targets = (inputs[:, :3] + 0.3 * numbers(count, 3, seed=2)).argmax(1)
    given = {
        "model": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
        "data": (inputs, targets),
        "loss": nn.functional.cross_entropy,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.5),
        "batch_size": 12,
        "test": (inputs, targets),
        "metric": "accuracy",
    }
    return pl.Task(**(given | changes))


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def put(model, vector):
    with torch.no_grad():
        nn.utils.vector_to_parameters(vector.clone(), model.parameters())


class PlainWorkers:
    """Several copies of a model with an optimizer each: what local SGD is made of, without Paceline."""

    def __init__(self, task, workers, seed=0):
        self.task, self.workers = task, workers
        self.data = Samples(task.build_data())
        self.batches = GlobalBatches(self.data.length, task.batch_size, seed)
        self.models = [task.build_model(seed) for _ in range(workers)]
        self.optimizers = [task.build_optimizer(model) for model in self.models]

    def step(self, number):
        for worker, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            batch = self.batches.slice(number, worker, self.workers)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            if batch.count:
                *inputs, target = self.data.fetch(batch.indices)
                weight = self.workers * batch.count / batch.total
                (self.task.loss(model(*inputs), target) * weight).backward()
            optimizer.step()

    def mean(self):
        return torch.stack([flat(model) for model in self.models]).mean(0)

    def put(self, vector):
        for model in self.models:
            put(model, vector)

    def average_moments(self):
        """Of everything that has the shape of its parameter."""
        for place in range(len(list(self.models[0].parameters()))):
            states = [
                optimizer.state[optimizer.param_groups[0]["params"][place]] for optimizer in self.optimizers
            ]
            for key, value in states[0].items():
                if torch.is_tensor(value) and value.dim():
                    mean = torch.stack([state[key] for state in states]).mean(0)
                    for state in states:
                        state[key].copy_(mean)


def train_one_client(task, model, numbers_of_samples, steps, *, rate=1.0, proximal=0.0):
    """Train a client with a fresh optimizer for some steps on all of its samples. Return its model."""
    client = copy.deepcopy(model)
    before = flat(model)
    optimizer = task.build_optimizer(client)
    for group in optimizer.param_groups:
        group["lr"] *= rate
    *inputs, target = Samples(task.build_data()).fetch(np.asarray(numbers_of_samples))
    for _ in range(steps):
        optimizer.zero_grad()
        distance = nn.utils.parameters_to_vector(client.parameters()) - before
        (task.loss(client(*inputs), target) + proximal / 2 * distance.square().sum()).backward()
        optimizer.step()
    return client


def mean_difference(task, model, parts, steps, **options):
    """Return the change of the model in a round of federated averaging."""
    total = sum(len(part) for part in parts)
    moved = torch.zeros_like(flat(model))
    for part in parts:
        moved += (
            (flat(train_one_client(task, model, part, steps, **options)) - flat(model)) * len(part) / total
        )
    return moved


def in_parts(*sizes):
    """A partition function: the samples in order, in parts of these sizes."""
    ends = np.cumsum([0, *sizes])

    def in_order(targets, clients, seed):
        return [np.arange(a, b) for a, b in itertools.pairwise(ends)]

    return in_order
