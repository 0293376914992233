"""Memory of a shape-only model, for simulations without computation.

Its forward pass runs once for each number of samples, on torch's meta device, which has shapes but no data. A model
that cannot run there (for example, one that reads values) has activations of 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from paceline.model.activations import Activations, bytes_of, state_of
from paceline.model.holding import StateRange
from paceline.model.memory.computed import tensor_bytes
from paceline.model.memory.fused_attention import FusedAttention
from paceline.model.optimizer.updates import FlatOptimizers
from paceline.system.seeding import rng_preserved
from paceline.task.calls import loss_of

if TYPE_CHECKING:
    from paceline.model.engines.shape_model import ShapeModel

_log = logging.getLogger("paceline")


class ShapeMemory:
    """Figures of one model, computed once for all ranks."""

    def __init__(self, model: ShapeModel) -> None:
        self._model = model
        self._activations: dict[int, int] = {}
        self.activations_of: Callable[[int], int] | None = None
        """Returns the activation bytes for a number of samples, if they are known. None to run a forward pass."""
        self._state: list[StateRange] | None = None
        self.of_segments: dict[Any, Any] = {}
        """Figures of the model's segments, if it is cut: see `SegmentActivations`."""
        self.buffer_bytes = tensor_bytes(model.module.buffers())

    def activations(self, samples: int, few: Callable[[], Any]) -> int:
        """Return the activation bytes of a forward pass. `few` returns a few samples. Only their shapes are used."""
        found = self._activations.get(samples)
        if found is None and self.activations_of is not None:
            found = self._activations[samples] = self.activations_of(samples)
        if found is None:
            found = self._activations[samples] = tried(lambda: self._count(few(), samples)) or 0
        return found

    def _count(self, few: Any, samples: int) -> int:
        task, module, again = self._model.task, self._model.module, self._model.recomputing
        counted = Activations(state_of(module))
        content = resized(few, samples)
        module.train()
        if again is None:
            with counted.counting(), FusedAttention():
                loss_of(task, module, content)
            return counted.clear()
        again.counts, again.largest_bytes = True, 0
        with counted.counting(), again.forward(), FusedAttention():
            loss = loss_of(task, module, content)
        trained = [each for each in module.parameters() if each.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)
        return counted.clear() + again.largest_bytes

    def optimizer_state(self) -> list[StateRange]:
        """Return the optimizer state of each updated tensor of the whole model, after the first update."""
        if self._state is None:
            self._state = tried(self._update) or []
        return self._state

    def _update(self) -> list[StateRange]:
        model = self._model
        layout = model.holding.layout
        optimizers = FlatOptimizers(
            model.task, model.module, layout, model.memory_of, [slice(0, layout.length)]
        )
        found = []
        for each in optimizers.by_name.values():
            each.optimizer.step()
            for piece, state in each.optimizer.state.items():
                values = (value for value in state.values() if isinstance(value, Tensor) and value.dim())
                start = int(piece.storage_offset())
                found.append(StateRange(start, start + piece.numel(), bytes_of(values)))
        return found


def resized(values: Any, samples: int) -> Any:
    """Return the shapes of a few samples with the batch size changed to `samples`. The first tensor has the old batch
    size.
    """
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
    """Return the result of user code that runs without data. None if it cannot."""
    try:
        with rng_preserved():
            return work()
    except Exception as error:
        _log.debug("memory is not counted: %s", error)
        return None
