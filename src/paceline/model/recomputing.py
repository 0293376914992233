"""Recomputation in a model that a rank holds whole: `Task(recompute=True)`.

The blocks of each `nn.ModuleList` and the layers of each `nn.Sequential` store only their inputs. Backward computes
each of them again, with the same random numbers and buffers. Blocks with child layers are recomputed one by one. If a
list contains a module that itself has a list of blocks, the inner blocks are recomputed, not that module as a whole.
Plain layers store little more than their inputs, so they are grouped: sqrt(n) groups of n layers.

This is not `torch.utils.checkpoint`, which would update BatchNorm statistics twice, and restores only torch's random
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.errors import ConfigurationError
from paceline.model.activations import Activations, state_of
from paceline.model.replay_point import ReplayPoint

Run = Callable[..., Any]


class Recomputing:
    """Recomputation of the blocks of one module."""

    def __init__(self, module: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """`context` is the context manager in which a block is computed again."""
        self._module = module
        self._context = context
        self._owners = list(_owners(module))
        self.counts = False
        """Whether to count the memory of each block when it is computed again."""
        self.largest_bytes = 0
        """Largest of these counts."""

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Return a context in which forward passes store only the inputs of blocks."""
        if not self._owners:
            bound = "must not be given for a model without an nn.Sequential or an nn.ModuleList"
            remedy = "put its blocks into one, or choose a strategy that cuts the model: layers or pipeline"
            raise ConfigurationError("recompute", bound, type(self._module).__name__, remedy)
        changed: list[nn.Module] = []
        try:
            for owner in self._owners:
                for module, forward in self._replaced(owner):
                    # An attribute of the instance takes precedence over the method of its class.
                    module.__dict__["forward"] = forward
                    changed.append(module)
            yield
        finally:
            for module in changed:
                module.__dict__.pop("forward", None)

    def _replaced(self, owner: nn.Module) -> Iterator[tuple[nn.Module, Run]]:
        if isinstance(owner, nn.Sequential):
            yield owner, self._in_groups(owner)
            return
        for block in owner.children():
            # If the instance already has `forward`, other code has replaced the method.
            if "forward" not in block.__dict__ and not _is_descended_into(owner, block):
                yield block, self._recomputed([block], type(block).forward.__get__(block))

    def _in_groups(self, owner: nn.Sequential) -> Run:
        layers = list(owner)
        groups = [layers[a:b] for a, b in pairwise(_bounds(layers))]
        runs = [
            group[0] if _is_descended_into(owner, group[0]) else self._recomputed(group, _chain(group))
            for group in groups
        ]

        def forward(value: Any) -> Any:
            for run in runs:
                value = run(value)
            return value

        return forward

    def _recomputed(self, modules: Sequence[nn.Module], run: Run) -> Run:
        parameters = list({id(p): p for m in modules for p in m.parameters() if p.requires_grad}.values())
        buffers = [buffer for module in modules for buffer in module.buffers()]

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = tree_flatten((args, kwargs))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
            tensors = [leaves[place] for place in places]
            if not torch.is_grad_enabled() or not any(each.requires_grad for each in (*tensors, *parameters)):
                return run(*args, **kwargs)
            for place in places:
                leaves[place] = None  # autograd stores these inputs

            def compute(given: Sequence[Tensor]) -> Any:
                for place, tensor in zip(places, given, strict=True):
                    leaves[place] = tensor
                args, kwargs = tree_unflatten(list(leaves), spec)
                for place in places:
                    leaves[place] = None
                return run(*args, **kwargs)

            block = _Block(self, compute, parameters, ReplayPoint(lambda: buffers))
            made = _Recompute.apply(block, *tensors, *parameters)  # type: ignore[no-untyped-call]
            return tree_unflatten(list(made), block.spec)

        return forward

    def compute_again(self, block: _Block, given: Sequence[Tensor]) -> list[Any]:
        """Compute a block again. Return the leaves of its output."""
        with torch.enable_grad(), self._context(), block.moment.again():
            if not self.counts:
                return tree_flatten(block.compute(given))[0]
            counted = Activations([*given, *state_of(self._module)])
            with counted.counting():
                leaves = tree_flatten(block.compute(given))[0]
            _check_own(leaves, (*given, *block.parameters))
        self.largest_bytes = max(self.largest_bytes, counted.clear())
        return leaves


class _Block:
    """One pass through one block."""

    def __init__(
        self,
        owner: Recomputing,
        compute: Callable[[Sequence[Tensor]], Any],
        parameters: Sequence[Tensor],
        moment: ReplayPoint,
    ) -> None:
        self.owner = owner
        self.compute = compute
        self.parameters = parameters
        self.moment = moment
        self.spec: Any = None


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: _Block, *given: Tensor) -> tuple[Any, ...]:
        tensors = given[: len(given) - len(block.parameters)]
        ctx.block = block
        ctx.save_for_backward(*tensors)
        leaves, block.spec = tree_flatten(block.compute(tensors))
        block.moment.end()
        # An input that a block returns unchanged must not count as an output of the block.
        same = {id(tensor) for tensor in tensors}
        return tuple(
            leaf.view_as(leaf) if isinstance(leaf, Tensor) and id(leaf) in same else leaf for leaf in leaves
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        block: _Block = ctx.block
        needs = ctx.needs_input_grad[1 : 1 + len(ctx.saved_tensors)]
        pairs = zip(ctx.saved_tensors, needs, strict=True)
        given = [tensor.detach().requires_grad_(needed) for tensor, needed in pairs]
        made = block.owner.compute_again(block, given)
        ends = [
            (leaf, gradient)
            for leaf, gradient in zip(made, gradients, strict=True)
            if isinstance(leaf, Tensor) and leaf.requires_grad and gradient is not None
        ]
        of = [tensor for tensor in (*given, *block.parameters) if tensor.requires_grad]
        found = iter(_gradients(ends, of))
        return (
            None,
            *(next(found) if each.requires_grad else None for each in (*given, *block.parameters)),
        )


def _gradients(ends: Sequence[tuple[Tensor, Tensor]], of: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not ends or not of:
        return [None] * len(of)
    outputs, given = zip(*ends, strict=True)
    return torch.autograd.grad(outputs, of, given, allow_unused=True)


def _check_own(made: Sequence[Any], own: Sequence[Tensor]) -> None:
    """Raise ConfigurationError if a block uses other tensors: their gradients would be lost."""
    known = {id(tensor) for tensor in own}
    waiting = [leaf.grad_fn for leaf in made if isinstance(leaf, Tensor)]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            bound = "must not be given if blocks use tensors other than their parameters and inputs"
            remedy = "pass it to the block's forward, or choose a strategy that cuts the model"
            raise ConfigurationError("recompute", bound, f"a tensor of shape {tuple(leaf.shape)}", remedy)
        new = {child for child, _ in node.next_functions} - seen
        seen |= new
        waiting += new


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the lists whose layers are recomputed."""
    is_list = _is_list(module)
    if is_list:
        yield module
    for child in module.children():
        if not is_list or _is_descended_into(module, child):
            yield from _owners(child)


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) or type(module) is nn.Sequential


def _is_descended_into(owner: nn.Module, layer: nn.Module) -> bool:
    """Return whether blocks within a layer of a list are recomputed instead of the layer."""
    return not _lists_blocks(owner) and any(_lists_blocks(each) for each in layer.modules())


def _lists_blocks(module: nn.Module) -> bool:
    """Return whether a module is a list with several blocks of one type. A list within a list is not a block."""
    if not _is_list(module):
        return False
    blocks = [type(child) for child in module.children() if not _is_list(child) and any(child.children())]
    return len(blocks) > len(set(blocks))


def _bounds(layers: Sequence[nn.Module]) -> list[int]:
    """Return the start of each group, followed by the number of layers."""
    if any(next(layer.children(), None) is not None for layer in layers):
        return list(range(len(layers) + 1))
    count = max(1, round(math.sqrt(len(layers))))
    starts = {len(layers) * number // count for number in range(1, count)}
    # A group must not start with a layer that changes its input in place: the input is needed again.
    fit = {start for start in starts if not getattr(layers[start], "inplace", False)}
    moved = {start + 1 for start in starts - fit if start + 1 < len(layers)}
    return sorted({0, *fit, *moved, len(layers)})


def _chain(layers: Sequence[nn.Module]) -> Run:
    def run(value: Any) -> Any:
        for layer in layers:
            value = layer(value)
        return value

    return run
