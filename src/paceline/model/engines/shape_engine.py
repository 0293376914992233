"""The engine that computes nothing: it tracks shapes and memory, for simulations that charge time only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import BackwardPart, Batch, Hooks
from paceline.context.boundary import BoundaryValues
from paceline.context.segment import GroupReduction
from paceline.data.samples import Source
from paceline.errors import ConfigurationError
from paceline.model.buckets import Buckets
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers, TrialSamples
from paceline.model.engines.shape_inspection import ShapeInspection
from paceline.model.engines.shape_model import HeldShapes, ShapeModel
from paceline.model.engines.shape_optimization import ShapeOptimization
from paceline.model.engines.shape_shards import ShapeShards
from paceline.model.gradients import ignore_bucket
from paceline.model.holding import Sharding
from paceline.model.memory import Account, Ledger
from paceline.model.memory.shape_segments import SegmentActivations
from paceline.model.stages.arranged import length_after
from paceline.model.versions import ShapeVersions
from paceline.task.task import Task


class ShapeEngine:
    """Shapes and memory of one rank. Values that cross a cut have a size in bytes but no data.

    A simulation has thousands of these. Data that is the same for all ranks is in `ShapeModel`.
    """

    not_finite: str | None = None
    loss_scale = None
    loss_cause = ""
    device_s = 0.0
    hooked = None

    __slots__ = (
        "_account",
        "_activations",
        "_cut",
        "_few",
        "_given",
        "_model",
        "_units",
        "computed",
        "gradient",
        "holding",
        "logged",
        "optimization",
        "parameters",
    )

    def __init__(self, model: ShapeModel) -> None:
        self._model = model
        self._account: Account | None = None
        self._few: Callable[[], Any] | None = None
        self._cut: Cut | None = None
        self._given: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by segment and micro-batch
        self._activations: SegmentActivations | None = None
        self._units: ShapeShards | None = None
        self.holding = model.holding
        self.parameters = model.parameters
        self.gradient = model.gradient
        self.logged: dict[str, float] = {}
        self.computed: Batch | None = None
        self.optimization = ShapeOptimization(model, model.holding, None)

    def keep_versions(self) -> ShapeVersions:
        return self.optimization.keep_versions(self.parameters.numel() * self.parameters.itemsize)

    @property
    def task(self) -> Task:
        return self._model.task

    @property
    def module(self) -> nn.Module:
        return self._model.module

    @property
    def whole(self) -> ShapeModel:
        return self._model

    @property
    def buffers(self) -> Sequence[Tensor]:
        return self._model.buffers if self._cut is None else ()

    @property
    def stage_tracker(self) -> ShapeEngine:
        return self

    @property
    def inspection(self) -> ShapeInspection:
        return ShapeInspection(self.task, self.holding.layout)

    @property
    def shards(self) -> ShapeShards:
        assert self._units is not None, "share comes first"
        return self._units

    # What the rank holds

    def attach(self, ledger: Ledger, few: Callable[[], Any]) -> None:
        self._few = few
        self._account = ledger.account()
        self.optimization = ShapeOptimization(self._model, self.holding, self._account)
        self._book(self._model.whole)

    def _book(self, held: HeldShapes) -> None:
        assert self._account is not None
        self._account.hold("parameters", held.parameter_bytes)
        self._account.hold("gradients", held.gradient_bytes)
        self._account.hold("buffers", self._model.memory.buffer_bytes)

    def build(self) -> None:
        pass

    def twin(self) -> ShapeEngine:
        return ShapeEngine(self._model)

    def layers(self, samples: TrialSamples, tensor: int, sequence: bool, hooks: Hooks = "never") -> Layers:
        # The order in which hooks would be called is unknown without data. The model is therefore always traced.
        if self.task.sync_batch_norm and hooks != "never":
            bound = 'must not be given with math="none" where workers gather and free parameters'
            raise ConfigurationError("sync_batch_norm", bound, True, 'use math="real", or zero:stage=1')
        return Layers.of_samples(self.task, self.module, samples.to("meta"), tensor=tensor, sequence=sequence)

    def hold(
        self,
        cut: Cut,
        segments: Sequence[int] | None = None,
        *,
        worker: int = 0,
        keeps_whole: bool = False,
        sharding: Sharding | None = None,
    ) -> ShapeEngine:
        made, model = ShapeEngine(self._model), self._model
        made._account, made._few, made._cut = self._account, self._few, cut
        if sharding is not None:
            held = model.sharded(cut, segments, sharding)
            made._units = ShapeShards(held.holding, self._account)
        else:
            held = model.whole if segments is None else model.part(cut, segments)
        made.holding, made.parameters = held.holding, held.parameters
        made.gradient = held.gradient
        made.optimization = ShapeOptimization(model, held.holding, self._account)
        if sharding is not None and not sharding.frees_parameters:
            made.gradient = torch.empty(made.holding.own_length, dtype=held.gradient.dtype, device="meta")
        if self._account is not None:
            assert self._few is not None
            made._book(held)
            self._account.begin()
            made._activations = SegmentActivations(self._account, model, cut, self._few)
        return made

    # Gradients

    def buckets(self, bucket_bytes: int | None = None) -> Buckets:
        model = self._model
        if bucket_bytes is not None and bucket_bytes != model.buckets.bucket_bytes:
            model.buckets = Buckets(self.holding.layout, bucket_bytes)
        return model.buckets

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None] = ignore_bucket,
        checkpoint: Callable[[], None] | None = None,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        account = self._account
        if account is None or not batch.count:
            return
        assert self._few is not None
        model = self._model
        memory, largest = model.memory, -(-batch.count // model.task.accumulate)
        if memory.buffer_bytes:
            account.hold("buffers", 2 * memory.buffer_bytes)  # a copy, in case the computation is cancelled
        account.touch("activations", memory.activations(largest, self._few))

    def undo_buffers(self) -> None:
        pass

    def begin_batch(self) -> None:
        if self._units is not None:
            self._units.begin_batch()

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: BoundaryValues
    ) -> BoundaryValues | None:
        assert self._cut is not None
        self._given[segment, part] = given.tensors
        if self._activations is not None:
            self._activations.forward(segment, part, batch.count)
        if segment + 1 == len(self._cut.segments):
            return None
        return _crossing(self._cut.segments[segment].values_out, batch.count)

    def backward(
        self, segment: int, part: int, given: Sequence[Tensor], way: BackwardPart = "both"
    ) -> Sequence[Tensor]:
        made: Sequence[Tensor] = ()
        if way != "weights":
            if self._activations is not None:
                self._activations.backward(segment, part)
            made = list(self._given.pop((segment, part)))  # a gradient has the shape of its value
        if way != "inputs":
            if self._activations is not None:
                self._activations.end(segment, part)
            if self._units is not None:
                self._units.note_backward(segment)
        return made

    def forward_through(
        self, segments: Sequence[int], batch: Batch, part: int, given: BoundaryValues
    ) -> BoundaryValues:
        assert self._cut is not None
        all_segments, size = self._cut.segments, self._cut.size
        first, last = all_segments[segments[0]], all_segments[segments[-1]]
        self._given[first.number, part] = given.tensors
        if first.gradient_reductions:  # values and gradients have crossed the cut
            before = all_segments[first.number - 1]
            together = (*before.reductions, *first.gradient_reductions)
            self._given[first.number, part] = _crossing(
                before.values_out, batch.count, together, size
            ).tensors
        if self._activations is not None:
            self._activations.forward_through(segments, part, batch.count)
        if last is all_segments[-1]:
            return BoundaryValues()
        return _crossing(last.values_out, batch.count, last.reductions, size)

    def backward_through(self, segments: Sequence[int], part: int, way: BackwardPart) -> Sequence[Tensor]:
        if self._activations is not None:
            self._activations.backward_through(segments, part, way)
        return [] if way == "weights" else list(self._given.pop((segments[0], part)))

    def end_batch(self) -> None:
        if self._units is not None:
            self._units.end_batch()

    # Memory: there is none

    def place(self, parameters: Tensor | None, gradient: Tensor | None) -> None:
        pass

    def release(self) -> None:
        pass

    def reclaim(self) -> None:
        pass


@lru_cache(maxsize=1024)
def _crossing(
    values: tuple[int, ...], samples: int, together: tuple[GroupReduction, ...] = (), size: int = 1
) -> BoundaryValues:
    """Return the values that cross a cut. Cached, because simulations request equal cuts and micro-batches often."""
    lengths = [nbytes * samples for nbytes in values]
    for each in together:
        lengths[each.place] = length_after(lengths[each.place], each.how, size)
    tensors = tuple(torch.empty(length, dtype=torch.uint8, device="meta") for length in lengths)
    return BoundaryValues(tensors, (True,) * len(values))
