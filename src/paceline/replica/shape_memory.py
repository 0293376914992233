"""What a model of shapes alone would hold: for simulations that do no mathematics.

Its forward pass is run once for each number of samples, on torch's meta device, which has shapes but no data. A model
that cannot run there (one that looks at values, say) has activations of 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from paceline.chance import kept
from paceline.replica.accounting import buffers_bytes, flat_bytes, parameters_bytes
from paceline.replica.activations import Activations, bytes_of, state_of
from paceline.replica.calls import loss_of
from paceline.replica.memory import Account
from paceline.replica.optimizers import FlatOptimizers

if TYPE_CHECKING:
    from paceline.replica.shapes import ShapeReplica

__all__ = ["ShapeMemory", "resized"]

_log = logging.getLogger("paceline")


class ShapeMemory:
    """Figures of one model, which many ranks ask for."""

    def __init__(self, shapes: ShapeReplica) -> None:
        self._shapes = shapes
        self._activations: dict[int, int] = {}
        self._remembered: list[tuple[int, int, int]] | None = None
        self.of_segments: dict[Any, Any] = {}
        """What is known of the segments of the model, where it is cut: see `BlankActivations`."""
        module = shapes.module
        self.parameters = parameters_bytes(shapes)
        self.gradients = flat_bytes(shapes.gradient)
        self.buffers = buffers_bytes(module.buffers())

    def hold_model(self, account: Account) -> None:
        account.hold("parameters", self.parameters)
        account.hold("gradients", self.gradients)
        account.hold("buffers", self.buffers)

    # Activations

    def activations(self, samples: int, few: Callable[[], Any]) -> int:
        """Of a forward pass of so many samples. `few` gives some, for their shapes."""
        if samples not in self._activations:
            self._activations[samples] = tried(lambda: self._count(few(), samples)) or 0
        return self._activations[samples]

    def _count(self, few: Any, samples: int) -> int:
        shapes = self._shapes
        counted = Activations(state_of(shapes.module))
        content = resized(few, samples)
        shapes.module.train()
        if shapes.recomputing is None:
            with counted.counting():
                loss_of(shapes.task, shapes.module, content)
            return counted.let_go()
        again = shapes.recomputing
        again.counts, again.largest_bytes = True, 0
        with counted.counting(), again.forward():
            loss = loss_of(shapes.task, shapes.module, content)
        trained = [each for each in shapes.module.parameters() if each.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)
        return counted.let_go() + again.largest_bytes

    # Optimizers

    def optimizer(self, ranges: Iterable[tuple[int, int]]) -> int:
        """What the optimizers remember of these parts of the flat parameters."""
        if self._remembered is None:
            self._remembered = tried(self._update) or []
        total = 0.0
        for a, b in ranges:
            for start, stop, nbytes in self._remembered:
                total += nbytes * max(0, min(b, stop) - max(a, start)) / (stop - start)
        return round(total)

    def _update(self) -> list[tuple[int, int, int]]:
        """Where each tensor lies that is updated, and the bytes that are remembered of it."""
        shapes = self._shapes
        whole = slice(0, shapes.layout.length)
        made = FlatOptimizers(
            shapes.task,
            shapes.module,
            shapes.layout,
            lambda part: (shapes.parameters[part], shapes.gradient[part]),
            [whole],
        )
        found = []
        for each in made.by_name.values():
            each.optimizer.step()
            for piece, state in each.optimizer.state.items():
                values = (value for value in state.values() if isinstance(value, Tensor) and value.dim())
                start = int(piece.storage_offset())
                found.append((start, start + piece.numel(), bytes_of(values)))
        return found


def resized(values: Any, samples: int) -> Any:
    """The shapes of some samples as those of so many. The first tensor says how many there are."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    first = next((tensor for tensor in tensors if tensor.dim()), None)
    count = -1 if first is None else len(first)

    def shape_of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = (samples, *leaf.shape[1:]) if leaf.shape[:1] == (count,) else tuple(leaf.shape)
        return torch.empty(shape, dtype=leaf.dtype, device="meta")

    return tree_map(shape_of, values)


def tried(work: Callable[[], Any]) -> Any:
    """What a piece of work on the user's code gives without data; None where that cannot be."""
    try:
        with kept():
            return work()
    except Exception as error:
        _log.debug("memory is not counted: %s", error)
        return None
