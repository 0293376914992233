"""The whole model on the reporter, if it holds a part: for evaluation, and for saving the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.model.cutting.cut import Cut
from paceline.model.stages.resizable import ResizableBuffer
from paceline.model.stages.stripping import buffers_of, by_dtype

if TYPE_CHECKING:
    from paceline.model.engines.torch_engine import TorchEngine


class AssembledModel:
    """An engine with the whole model. Its parameters have memory from the first `put` until the next batch."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._parameters = ResizableBuffer(engine.parameters)

    def free(self) -> None:
        self._parameters.free()

    def put(self, cut: Cut, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor]) -> None:
        """Write the parameters and buffers of these segments, by name.

        `cut` is the cut of the rank that stores them.
        """
        names, layout = cut.parameters(held), self.engine.holding.layout
        views, at = layout.views(self._parameters.allocate()), 0
        for name, view in zip(layout.names, views, strict=True):
            if name in names:
                count = cut.count(name, view.shape)
                cut.write(name, view, parameters[at : at + count])
                at += count
        own = by_dtype(buffers_of(self.engine.module, cut, held))
        for group, flat in zip(own, buffers, strict=True):
            at = 0
            for buffer in group:
                buffer.copy_(flat[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()
