"""The interface between a replica and its engine. `TorchEngine` computes; `ShapeEngine` only tracks shapes, costs
and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from paceline.context import BackwardPart, Batch, Hooks
from paceline.context.boundary import BoundaryValues
from paceline.data.samples import Samples, Source
from paceline.model.buckets import Buckets
from paceline.model.cutting.cut import Cut
from paceline.model.holding import Holding, Sharding
from paceline.model.loss_scale import LossScale
from paceline.model.memory import Ledger
from paceline.model.optimizer.updates import Updates
from paceline.task.task import Task

if TYPE_CHECKING:
    from paceline.model.cutting.layers import Layers, TrialSamples
    from paceline.model.hooks.blocks import BlockLayers
    from paceline.model.hooks.hooked_pass import HookedPass
    from paceline.model.versions import Versions


class Whole(Protocol):
    """The whole model, on a rank that has it."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def holding(self) -> Holding: ...
    @property
    def laid_out(self) -> Tensor:
        """All parameters, in the order of the holding's layout. Units of other ranks must be gathered."""
        ...


class Shards(Protocol):
    """Units that a rank shares with other ranks, by their place in `Holding.units`."""

    def gather(self, place: int) -> Tensor:
        """Allocate memory for all parameters of a unit and return it, with this rank's shard filled in."""
        ...

    def refresh(self, place: int) -> None:
        """Update the module's copies after the shards of the other ranks have arrived."""
        ...

    def free(self, place: int) -> None:
        """Free the shards of a unit that other ranks own."""
        ...

    def unit_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        """Return the full gradient of a unit, accumulated on this rank since the last call."""
        ...

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        """Return the gradients of whole parameters, before ranks exchange them."""
        ...

    def gradient_space(self, place: int) -> Tensor | None:
        """Return the memory for this rank's shard of a unit's gradient. None if it is already in use."""
        ...

    def keep_gradient(self, place: int, own: Tensor) -> None:
        """Add this rank's shard of a unit's gradient, summed over all ranks."""
        ...


class Optimization(Protocol):
    """Updates of the parameters that a rank stores. The methods are described in `Replica`."""

    @property
    def updates(self) -> Updates: ...

    def layer_squares(
        self, shard: slice | None, norm: float | None, *, of: Sequence[Batch], step: int
    ) -> Tensor: ...
    def update(
        self,
        shard: slice | None,
        norm: float | None,
        *,
        advance: bool,
        of: Sequence[Batch],
        step: int,
        squares: Tensor | None = None,
    ) -> None: ...
    def advance_schedule(self, updates: int) -> None: ...
    def reset(self) -> None: ...
    def moments(self) -> Sequence[Tensor]: ...
    def split(self, parts: int) -> Sequence[slice]: ...


class Inspection(Protocol):
    """The whole model, for evaluation and saving."""

    def held_parameters(self) -> Tensor:
        """Return the parameters of the held segments, flat, in the order of the whole model."""
        ...

    def held_buffers(self) -> Sequence[Tensor]:
        """Return the buffers of the held segments, one flat tensor per dtype."""
        ...

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        """Write the parameters and buffers of these segments into the reporter's whole model."""
        ...

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        """Return the metrics over all samples, in evaluation mode. With `parameters`, of these instead."""
        ...

    def evaluate_parts(self, samples: Samples, numbers: Sequence[int]) -> Tensor:
        """Return the contributions of these test batches to each metric."""
        ...

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        """Return a copy of the module's state. With `parameters`, of these instead."""
        ...


class StageTracker(Protocol):
    """Passes through several segments, with the reductions of their tensor group, tracked in one call."""

    def forward_through(
        self, segments: Sequence[int], batch: Batch, part: int, given: BoundaryValues
    ) -> BoundaryValues: ...

    def backward_through(self, segments: Sequence[int], part: int, way: BackwardPart) -> Sequence[Tensor]:
        """Track the backward passes of these segments. They are given in forward order."""
        ...


class Engine(Protocol):
    """Computes the part of a model that a rank holds, or tracks its costs. The methods are described in `Replica`."""

    @property
    def task(self) -> Task: ...
    @property
    def module(self) -> nn.Module: ...
    @property
    def holding(self) -> Holding: ...
    @property
    def computed(self) -> Batch | None:
        """Batch of the last gradient of the whole model; None if there was none."""
        ...

    @property
    def whole(self) -> Whole | None: ...
    @property
    def shards(self) -> Shards: ...
    @property
    def hooked(self) -> HookedPass | None:
        """Passes with hooks. None if the engine computes in segments."""
        ...

    @property
    def stage_tracker(self) -> StageTracker | None:
        """None if the engine computes, because reductions then need the values of other ranks."""
        ...

    def keep_versions(self) -> Versions:
        """Return the versions of the parameters. From now on, batches can pin them."""
        ...

    @property
    def optimization(self) -> Optimization: ...
    @property
    def inspection(self) -> Inspection: ...

    @property
    def parameters(self) -> Tensor: ...
    @property
    def gradient(self) -> Tensor: ...
    @property
    def buffers(self) -> Sequence[Tensor]: ...

    @property
    def not_finite(self) -> str | None: ...
    @property
    def loss_scale(self) -> LossScale | None: ...
    @property
    def loss_cause(self) -> str: ...
    @property
    def logged(self) -> dict[str, float]: ...
    @property
    def device_s(self) -> float: ...

    # What the rank holds

    def attach(self, ledger: Ledger, few: Callable[[], Any]) -> None: ...
    def build(self) -> None: ...
    def twin(self) -> Engine: ...
    def layers(
        self, samples: TrialSamples, tensor: int, sequence: bool, hooks: Hooks
    ) -> Layers | BlockLayers: ...
    def hold(
        self,
        cut: Cut,
        segments: Sequence[int] | None = None,
        *,
        worker: int = 0,
        keeps_whole: bool = False,
        sharding: Sharding | None = None,
    ) -> Engine:
        """Return the engine of a rank that holds a part of this model. The caller must stop using this engine."""
        ...

    # Gradients

    def buckets(self, bucket_bytes: int | None = None) -> Buckets: ...
    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None],
        checkpoint: Callable[[], None] | None,
        *,
        weight: float,
        accumulate: bool,
    ) -> float | None: ...
    def undo_buffers(self) -> None: ...
    def begin_batch(self) -> None: ...
    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: BoundaryValues
    ) -> BoundaryValues | Tensor | None: ...
    def backward(
        self, segment: int, part: int, given: Sequence[Tensor], way: BackwardPart = "both"
    ) -> Sequence[Tensor]: ...
    def end_batch(self) -> None: ...

    # Memory

    def place(self, parameters: Tensor | None, gradient: Tensor | None) -> None: ...
    def release(self) -> None: ...
    def reclaim(self) -> None: ...
