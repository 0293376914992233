"""Small losses of a layer with classes as columns, for each loss rule of the tensor planner."""

import torch
from tensor_operations import LENGTH
from torch.nn import functional

__all__ = ["CLASSES", "LOSSES", "TARGET"]

CLASSES = 11
aten = torch.ops.aten

TARGET = torch.arange(24 * LENGTH).reshape(24, LENGTH) % CLASSES
WEIGHT = torch.linspace(0.5, 1.5, CLASSES, dtype=torch.float64)


def classes_first(y):
    return y.transpose(1, 2)


def entropy(**options):
    return lambda y, target: functional.cross_entropy(classes_first(y), target, **options)


LOSSES = {
    "cross_entropy_loss": [
        entropy(),
        entropy(weight=WEIGHT, ignore_index=3),
        entropy(reduction="sum", label_smoothing=0.1),
        lambda y, target: functional.cross_entropy(y.flatten(0, 1), target.flatten()),
    ],
    "nll_loss_nd": [
        lambda y, target: functional.nll_loss(functional.log_softmax(classes_first(y), 1), target),
        lambda y, target: functional.nll_loss(classes_first(y), target, weight=WEIGHT, ignore_index=3),
    ],
    "nll_loss": [
        lambda y, target: aten.nll_loss(functional.log_softmax(y.flatten(0, 1), -1), target.flatten()),
    ],
    "nll_loss2d": [
        lambda y, target: aten.nll_loss2d(
            functional.log_softmax(classes_first(y), 1).unsqueeze(-1), target.unsqueeze(-1)
        ),
    ],
    "sym_size": [
        lambda y, target: functional.cross_entropy(y.reshape(y.size(0) * LENGTH, CLASSES), target.flatten()),
    ],
    "log_softmax": [
        lambda y, target: functional.nll_loss(
            functional.log_softmax(y.flatten(0, 1), -1), target.flatten(), reduction="sum"
        ),
        lambda y, target: functional.nll_loss(functional.log_softmax(classes_first(y), 2), target),
    ],
    "_log_softmax": [
        lambda y, target: functional.nll_loss(
            aten._log_softmax(y.flatten(0, 1), -1, False), target.flatten()
        ),
    ],
}
"""Losses by the names of their rules. They are functions of a layer with classes as columns, and of targets."""
