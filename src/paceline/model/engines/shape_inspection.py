"""Inspection of a model of shapes: there are no values, so metrics are NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.data.samples import Samples
from paceline.model.layout import Layout
from paceline.task.task import Task


class ShapeInspection:
    """Shape-only version of `TorchInspection`."""

    def __init__(self, task: Task, layout: Layout) -> None:
        self._task = task
        self._layout = layout

    def held_parameters(self) -> Tensor:
        return torch.empty(self._layout.length, dtype=self._layout.dtype, device="meta")

    def held_buffers(self) -> Sequence[Tensor]:
        return ()

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        pass

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        return dict.fromkeys(self._task.metrics(), float("nan"))

    def evaluate_parts(self, samples: Samples, numbers: Sequence[int]) -> Tensor:
        return torch.full((len(numbers), len(self._task.metrics()), 2), float("nan"), dtype=torch.float64)

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        return {}
