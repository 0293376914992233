"""Shapes of a model, shared by all ranks of a simulation that computes nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.context import BUCKET_BYTES
from paceline.model.buckets import Buckets
from paceline.model.buffers import FlatBuffers
from paceline.model.cutting.cut import Cut
from paceline.model.holding import Holding, Sharding
from paceline.model.layout import flatten
from paceline.model.memory.fused_attention import FusedAttention
from paceline.model.memory.shapes import ShapeMemory
from paceline.model.optimizer.updates import Updates
from paceline.model.recomputing import Recomputing
from paceline.task.task import Task


class HeldShapes(NamedTuple):
    """Data shared by all ranks with the same holding."""

    holding: Holding
    parameters: Tensor
    gradient: Tensor
    """Gradients of all stored parameters. The same tensor as `parameters` if the dtypes are equal."""
    parameter_bytes: int
    gradient_bytes: int


class ShapeModel:
    """A module on the meta device, so that a model of any size takes no memory. All ranks share it."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        self.task = task
        self.module = module
        self.holding = Holding.of(module, master_dtype=task.master_dtype, reduction_dtype=task.gradient_dtype)
        layout = self.holding.layout
        trainable = [p for p in module.parameters() if p.requires_grad]
        device = trainable[0].device if trainable else torch.device("cpu")
        self.parameters = flatten(trainable, layout.dtype, device)
        self.gradient = torch.zeros_like(self.parameters, dtype=self.holding.reduction_dtype)
        self.buffers = FlatBuffers(module).flats()
        self.updates = Updates(task, module, layout, self.memory_of)
        self.recomputing = Recomputing(module, FusedAttention) if task.recompute else None
        self.buckets = Buckets(layout, BUCKET_BYTES)
        self._splits: dict[tuple[int, int], Sequence[slice]] = {}
        self._held: dict[Any, HeldShapes] = {}
        self._moments: Sequence[Tensor] | None = None

    def memory_of(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return parameters and gradient of a part of the layout, both in the dtype of the parameters."""
        return self.parameters[part], torch.zeros_like(self.parameters[part])

    @property
    def laid_out(self) -> Tensor:
        return self.parameters

    @cached_property
    def memory(self) -> ShapeMemory:
        return ShapeMemory(self)

    @cached_property
    def works_elementwise(self) -> bool:
        return self.updates.work_elementwise

    @cached_property
    def whole(self) -> HeldShapes:
        return _held(self.holding, self.parameters)

    def part(self, cut: Cut, segments: Sequence[int]) -> HeldShapes:
        """Return the data shared by all ranks that hold these segments."""
        key = *_key(cut), tuple(segments)
        if key not in self._held:
            holding = self.holding.part(cut, segments)
            self._held[key] = _held(holding, _shape(holding.layout.length, holding))
        return self._held[key]

    def sharded(self, cut: Cut, segments: Sequence[int] | None, sharding: Sharding) -> HeldShapes:
        """Return the shapes of a rank that shares these segments. None for all of them."""
        key = *_key(cut), None if segments is None else tuple(segments), sharding.ranks
        if key not in self._held:
            before = self.holding if segments is None else self.part(cut, segments).holding
            holding = before.sharded(cut, sharding, elementwise=self.works_elementwise)
            self._held[key] = _held(holding, _shape(holding.layout.length, holding))
        known = self._held[key]
        holding = replace(known.holding, shard=sharding.own, frees_parameters=sharding.frees_parameters)
        stored = known.parameters
        if sharding.frees_parameters:
            stored = _shape(holding.stored_length, holding)
        return _held(holding, stored)

    def split(self, holding: Holding, parts: int) -> Sequence[slice]:
        """Return a layout in slices. Cached, because thousands of ranks request equal slices."""
        key = id(holding.layout), parts
        if key not in self._splits:
            self._splits[key] = holding.split(parts, elementwise=self.works_elementwise)
        return self._splits[key]

    def moments(self) -> Sequence[Tensor]:
        """Return the shapes of the optimizer state after the first update."""
        if self._moments is None:
            optimizers = self.updates.of()
            for each in optimizers.by_name.values():
                each.optimizer.step()
            self._moments = optimizers.moments()
        return self._moments


def _key(cut: Cut) -> tuple[Hashable, ...]:
    """Return a cache key: the facts that determine the parameters of a cut's segments."""
    return cut.bounds, cut.position, 1 if cut.shares is None else cut.shares.size


def _held(holding: Holding, parameters: Tensor) -> HeldShapes:
    gradient = parameters
    if holding.reduction_dtype != holding.layout.dtype:
        gradient = torch.empty_like(parameters, dtype=holding.reduction_dtype)
    return HeldShapes(holding, parameters, gradient, holding.parameter_bytes, holding.gradient_bytes)


def _shape(length: int, holding: Holding) -> Tensor:
    return torch.empty(length, dtype=holding.layout.dtype, device="meta")
