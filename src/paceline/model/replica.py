"""One rank's copy of a model, or of a part of it: what it holds, and the engine that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import BackwardPart, Batch, Hooks
from paceline.context.boundary import BoundaryValues
from paceline.data.samples import Source
from paceline.model.autocast import Autocast
from paceline.model.buckets import Buckets
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers, TrialSamples
from paceline.model.engines.engine import Engine, Inspection, Shards, Whole
from paceline.model.engines.settings import Settings
from paceline.model.engines.shape_engine import ShapeEngine
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.engines.torch_engine import TorchEngine
from paceline.model.gradients import ignore_bucket
from paceline.model.holding import Holding, Sharding
from paceline.model.hooks.blocks import BlockLayers
from paceline.model.layout import Layout
from paceline.model.loss_scale import LossScale
from paceline.model.memory import Ledger
from paceline.model.optimizer.updates import Updates
from paceline.task.task import Task


class Replica:
    """A model on a rank: all of it, some segments, or shards of these. With values, or of shapes only."""

    __slots__ = ("engine", "holding")

    def __init__(self, holding: Holding, engine: Engine) -> None:
        self.holding = holding
        self.engine = engine

    @classmethod
    def of(
        cls,
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        rank: int = 0,
        autocast: tuple[Autocast, ...] = (),
        device: torch.device | None = None,
    ) -> Replica:
        """Return a replica that computes with this module, moved to `device` if given.

        Memory is allocated on first use, or by `build`. Until then, the parameters are those of the module.
        """
        settings = Settings(task=task, seed=seed, rank=rank, autocast=autocast)
        return cls._with(TorchEngine.of(settings, module, device))

    @classmethod
    def of_shapes(cls, model: ShapeModel) -> Replica:
        """Return a replica of shapes only. All ranks of a simulation share the model."""
        return cls._with(ShapeEngine(model))

    @classmethod
    def _with(cls, engine: Engine) -> Replica:
        return cls(engine.holding, engine)

    # What the rank holds

    @property
    def task(self) -> Task:
        return self.engine.task

    @property
    def module(self) -> nn.Module:
        return self.engine.module

    @property
    def layout(self) -> Layout:
        return self.holding.layout

    @property
    def updates(self) -> Updates:
        return self.engine.optimization.updates

    @property
    def whole(self) -> Whole | None:
        """The whole model; None if this rank does not have it."""
        return self.engine.whole

    def attach(self, ledger: Ledger, few: Callable[[], Any]) -> None:
        """Record memory in the ledger of a rank. `few` returns a few samples, to predict memory from their shapes."""
        self.engine.attach(ledger, few)

    def build(self) -> None:
        """Allocate the memory, unless it is already allocated."""
        self.engine.build()

    def twin(self) -> Replica:
        """Return another replica of this rank, in the initial state of this one."""
        return self._with(self.engine.twin())

    def layers(
        self, samples: TrialSamples, *, tensor: int = 1, sequence: bool = False, hooks: Hooks = "never"
    ) -> Layers | BlockLayers:
        """Return the layers of the model, or its blocks: see `layers_or_blocks`."""
        return self.engine.layers(samples, tensor, sequence, hooks)

    def part(
        self, cut: Cut, segments: Sequence[int], *, worker: int = 0, keeps_whole: bool = False
    ) -> Replica:
        """Return a replica of these segments, which replaces this one. It draws random numbers as worker `worker`.

        With `keeps_whole`, it has the whole model for evaluation.
        """
        return self._with(self.engine.hold(cut, segments, worker=worker, keeps_whole=keeps_whole))

    def sharded(
        self,
        cut: Cut,
        sharding: Sharding,
        segments: Sequence[int] | None = None,
        *,
        worker: int = 0,
        keeps_whole: bool = False,
    ) -> Replica:
        """Return a replica of one shard of these segments, or of all. The new replica replaces this one."""
        made = self.engine.hold(cut, segments, worker=worker, keeps_whole=keeps_whole, sharding=sharding)
        return self._with(made)

    # Memory

    @property
    def parameters(self) -> Tensor:
        """The trainable parameters that this rank stores, one flat tensor."""
        return self.engine.parameters

    @property
    def gradient(self) -> Tensor:
        """The gradients of the parameters that this rank updates, one flat tensor."""
        return self.engine.gradient

    @property
    def buffers(self) -> Sequence[Tensor]:
        return self.engine.buffers

    def place(self, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        """Move the flat tensors into other memory, with the values that the parameters have there."""
        self.engine.place(parameters, gradient)

    def release(self) -> None:
        """Free the memory of the parameters. No other code may use this memory. The values are lost."""
        self.engine.release()

    def reclaim(self) -> None:
        """Allocate memory for the parameters again."""
        self.engine.reclaim()

    # Gradients of the whole model

    @property
    def not_finite(self) -> str | None:
        """Parameter with a NaN or infinite value in its last gradient. None with a loss scale: updates are skipped."""
        return self.engine.not_finite if self.loss_scale is None else None

    @property
    def loss_scale(self) -> LossScale | None:
        return self.engine.loss_scale

    @property
    def loss_cause(self) -> str:
        """Why the last loss was not finite. Empty if it was finite, or if the cause is unknown."""
        return self.engine.loss_cause

    @property
    def logged(self) -> dict[str, float]:
        """Values that the user's step returned for the last batch in addition to the loss."""
        return self.engine.logged

    @property
    def buckets(self) -> Buckets:
        return self.engine.buckets()

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Cut the gradient into buckets of about this size from now on."""
        self.engine.buckets(bucket_bytes)

    def bucket(self, number: int) -> Tensor:
        return self.engine.gradient[self.engine.buckets().place(number)]

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None] = ignore_bucket,
        checkpoint: Callable[[], None] | None = None,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> float | None:
        """Compute the batch's mean gradient times a weight into `gradient`, or add it. Return the mean loss.

        The loss is None if nothing is computed. `on_bucket` is called with the number of each bucket that is ready and
        has only finite values. `checkpoint` is called before each layer (unless compiled) and after each parameter's
        gradient. It may raise to cancel the computation; the replica stays usable.
        """
        return self.engine.compute(
            batch, samples, on_bucket, checkpoint, weight=weight, accumulate=accumulate
        )

    def undo_buffers(self) -> None:
        """Restore the buffers: the last batch was cancelled."""
        self.engine.undo_buffers()

    # Gradients by segments

    def begin_batch(self) -> None:
        """Prepare for the first micro-batch of a step."""
        self.engine.begin_batch()

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: BoundaryValues
    ) -> BoundaryValues | Tensor | None:
        """Return a segment's outputs for a micro-batch. The last returns the loss, or None if nothing is computed."""
        return self.engine.forward(segment, batch, part, samples, given)

    def backward(
        self, segment: int, part: int, given: Sequence[Tensor], way: BackwardPart = "both"
    ) -> Sequence[Tensor]:
        """Return the gradients of the inputs that need one. Add the gradients of the weights to `gradient`."""
        return self.engine.backward(segment, part, given, way)

    def end_batch(self) -> None:
        """Check that the gradient is finite, after the last micro-batch of a step."""
        self.engine.end_batch()

    @property
    def shared_units(self) -> Shards:
        """Units that this rank shares with other ranks."""
        return self.engine.shards

    # Updates

    def apply(
        self,
        shard: slice | None = None,
        norm: float | None = None,
        *,
        advance: bool = True,
        of: Sequence[Batch] = (),
        step: int = 0,
        squares: Tensor | None = None,
    ) -> None:
        """Take one step of the task's optimizer on a shard of the parameters, or on all of them.

        `of` is the batches of the gradient; by default the last one that was computed here. If none was, the models to
        update are those of step number `step` of the run. `squares` is the sum of all ranks' `layer_squares`.
        """
        of, optimization = self._batches(of), self.engine.optimization
        optimization.update(shard, norm, advance=advance, of=of, step=step, squares=squares)

    def _batches(self, of: Sequence[Batch]) -> Sequence[Batch]:
        computed = self.engine.computed
        return of if of or computed is None else (computed,)

    def layer_squares(
        self, shard: slice | None, norm: float | None, *, of: Sequence[Batch], step: int
    ) -> Tensor | None:
        """Begin an update. Return squared norms of this rank's parts of layers, which ranks sum before `apply`.

        None if no optimizer needs norms of whole layers.
        """
        optimization = self.engine.optimization
        if not optimization.updates.need_norms:
            return None
        return optimization.layer_squares(shard, norm, of=self._batches(of), step=step)

    def advance_schedule(self, updates: int) -> None:
        """Advance the learning-rate schedule by other ranks' updates."""
        self.engine.optimization.advance_schedule(updates)

    def reset_optimizer(self) -> None:
        """Clear the optimizer state, and restart the learning-rate schedule."""
        self.engine.optimization.reset()

    def moments(self) -> Sequence[Tensor]:
        """Return the optimizer state per parameter (momentum and the like), in the same order on every rank."""
        return self.engine.optimization.moments()

    def shards(self, parts: int) -> Sequence[slice]:
        """Return the parameters in `parts` shards, cut where the optimizer allows it."""
        return self.engine.optimization.split(parts)

    # The whole model

    @property
    def inspection(self) -> Inspection:
        """Evaluation and copies of the whole model, or of the held segments."""
        return self.engine.inspection
