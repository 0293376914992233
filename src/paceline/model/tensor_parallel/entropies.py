"""Rules of losses over split classes: cross entropy, and log_softmax with nll_loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from paceline.model.tensor_parallel.edits import Made, Step
from paceline.model.tensor_parallel.entropy import (
    cross_entropy,
    entropy_sums,
    exponentials,
    highest,
    log_of,
    minus,
    nll,
    picked,
)
from paceline.model.tensor_parallel.following import Follower, NoRule, Rule, State, argument, dim_of, first_of
from paceline.model.tensor_parallel.spec import Split


def _cross_entropy(look: Follower, node: fx.Node) -> State:
    value, split = _classes(look, node)
    weight = argument(node, 2, "weight")
    smoothing = float(argument(node, 5, "label_smoothing", 0.0))
    dim, classes = split.dim, split.length
    samples = [size for d, size in enumerate(look.shape(value)) if d != dim]
    target: Any = node.args[1]
    ends = (argument(node, 3, "reduction", 1), argument(node, 4, "ignore_index", -100), smoothing, classes)
    rows = [3 if smoothing else 2, *samples]
    of_all = [value, Made(0), target, weight, smoothing]
    steps = [
        Step(function=highest, arguments=[value, dim], shape=samples, how="max"),
        Step(function=entropy_sums, arguments=of_all, shape=rows, how="sum", split=split),
        Step(function=cross_entropy, arguments=[Made(1), target, weight, *ends], shape=look.shape(node)),
    ]
    look.part(node, steps)
    return None


def _nll(look: Follower, node: fx.Node) -> State:
    value, split = _classes(look, node)
    samples = [size for d, size in enumerate(look.shape(value)) if d != split.dim]
    target: Any = node.args[1]
    weight, reduction = argument(node, 2, "weight"), argument(node, 3, "reduction", 1)
    ends = [Made(0), target, weight, reduction, argument(node, 4, "ignore_index", -100), split.length]
    steps = [
        Step(function=picked, arguments=[value, target], shape=samples, how="sum", split=split),
        Step(function=nll, arguments=ends, shape=look.shape(node)),
    ]
    look.part(node, steps)
    return None


def _classes(look: Follower, node: fx.Node) -> tuple[fx.Node, Split]:
    """Return the input of a loss and its split. The input must be split by classes, and the targets must be class
    indices.
    """
    value, split = first_of(look, node)
    target: Any = node.args[1]
    if split.dim != min(1, len(look.shape(value)) - 1) or split.blocks > 1:
        raise NoRule("its samples are split, or its classes are not one block")
    if look.split(target) is not None:
        raise NoRule("its targets are split")
    if look.shape(target) == look.shape(value):
        raise NoRule("its targets are probabilities instead of class indices")
    return value, split


def _log_softmax(look: Follower, node: fx.Node) -> State:
    value, split = first_of(look, node)
    shape, dim = look.shape(value), split.dim
    if dim_of(node, 1, "dim", len(shape)) != dim:
        return split
    # Argument of _log_softmax: whether the output is float32.
    if argument(node, 2, "dtype") not in (None, False):
        raise NoRule("its output has another dtype")
    rest = [size for d, size in enumerate(shape) if d != dim]
    ones = [1 if d == dim else size for d, size in enumerate(shape)]
    steps = [
        Step(function=highest, arguments=[value, dim], shape=rest, how="max"),
        Step(function=exponentials, arguments=[value, Made(0), dim], shape=rest, how="sum"),
        Step(function=log_of, arguments=[Made(1), Made(0), dim], shape=ones, how="enter"),
        Step(function=minus, arguments=[value, Made(2)], shape=shape, gives_part=True),
    ]
    look.part(node, steps)
    return split


ENTROPIES: Mapping[str, Rule] = {
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(("nll_loss_nd", "nll_loss", "nll_loss2d"), _nll),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _log_softmax),
}
