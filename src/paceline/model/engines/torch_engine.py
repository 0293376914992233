"""The engine that computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import BackwardPart, Batch, Hooks
from paceline.context.boundary import BoundaryValues
from paceline.data.samples import Source
from paceline.errors import RunError
from paceline.model.buckets import Buckets
from paceline.model.buffers import FlatBuffers
from paceline.model.compiling import compiled, is_compiled
from paceline.model.cutting.cut import Cut
from paceline.model.cutting.layers import Layers, TrialSamples
from paceline.model.devices import CPU, Accelerator, enter, move_module, with_loss_on
from paceline.model.engines.assembled import AssembledModel
from paceline.model.engines.flat_store import FlatStore
from paceline.model.engines.inputs import Inputs
from paceline.model.engines.inspection import TorchInspection
from paceline.model.engines.loss_watch import LossWatch
from paceline.model.engines.narrowing import Narrowing
from paceline.model.engines.optimization import TorchOptimization
from paceline.model.engines.settings import Settings
from paceline.model.engines.shard_store import ShardStore
from paceline.model.engines.torch_passes import TorchPasses
from paceline.model.holding import Holding, Sharding
from paceline.model.hooks.blocks import BlockLayers, layers_or_blocks
from paceline.model.hooks.hooked_pass import HookedPass
from paceline.model.loss_scale import LossScale
from paceline.model.memory import Account, Ledger
from paceline.model.memory.computed import tensor_bytes
from paceline.model.stages.resizable import ResizableBuffer
from paceline.model.versions import TorchVersions


class TorchEngine:
    """A module, its parameters and gradients, and the passes through it.

    Memory is allocated on first use, and only for the parameters in the holding.
    """

    stage_tracker = None

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        holding: Holding,
        *,
        account: Account | None = None,
        cut: Cut | None = None,
        optimized: nn.Module | None = None,
        values: Mapping[str, Tensor] | None = None,
        assembled: AssembledModel | None = None,
    ) -> None:
        """`cut` is the cut of the model, if the engine computes in segments.

        `optimized` is a module with all parameters of the model, if `module` has a part of them. Optimizers are built
        from it. `values` are the parameters by name, if they are not those of the module.
        """
        self.settings = settings
        self.task = settings.task
        self.module = module
        self.holding = holding
        self.account = account or Ledger().account()
        self.passes = TorchPasses(self, cut)
        self._values = values
        self._assembled = assembled
        self.device = next((p.device for p in module.parameters() if p.requires_grad), CPU)
        self._accelerator = Accelerator.of(self.device)
        self.inputs = Inputs(settings, self._accelerator)
        self.losses = LossWatch(settings)
        self.loss_scale = settings.loss_scale
        every = module if optimized is None else optimized
        parts = holding, self._memory, self.account, self._accelerator
        self.optimization = TorchOptimization(settings.task, every, *parts)
        self._compiled: Any = None
        self.computed: Batch | None = None
        self._released_bytes, self.device_s = 0, 0.0
        self.inspection = TorchInspection(self, cut, assembled)

    @classmethod
    def of(cls, settings: Settings, module: nn.Module, device: torch.device | None = None) -> TorchEngine:
        """Return the engine of a whole module. With a `device`, the module is moved there."""
        if device is not None:
            enter(device)
            move_module(module, device)
            settings = replace(settings, task=with_loss_on(device, settings.task))
        scale = LossScale() if settings.task.precision == "fp16" else None
        return cls(replace(settings, loss_scale=scale), module, Holding.of(module))

    def twin(self) -> TorchEngine:
        return TorchEngine.of(self.settings, self.task.build_model(self.settings.seed), self.device)

    # What the rank holds

    def attach(self, ledger: Ledger, few: Callable[[], Any]) -> None:
        self.account.move_to(ledger)

    @property
    def _is_built(self) -> bool:
        return "store" in vars(self)

    def build(self) -> None:
        _ = self.store

    @cached_property
    def store(self) -> FlatStore | ShardStore:
        store = self.shards if self.holding.is_sharded else self.flat
        self._values = None
        self.account.hold("buffers", tensor_bytes(self.buffers))
        return store

    @cached_property
    def flat(self) -> FlatStore:
        # A hook of a layer would make torch compile again.
        watches = not self.task.compile and not is_compiled(self.module)
        return FlatStore(self.module, self.holding, self.device, self.account, watches_layers=watches)

    @cached_property
    def shards(self) -> ShardStore:
        return ShardStore(self.module, self.holding, self.device, self.account, self._values)

    def keep_versions(self) -> TorchVersions:
        return self.optimization.keep_versions(self.flat)

    @cached_property
    def flat_buffers(self) -> FlatBuffers:
        return FlatBuffers(self.module)

    def layers(
        self, samples: TrialSamples, tensor: int, sequence: bool, hooks: Hooks = "never"
    ) -> Layers | BlockLayers:
        return layers_or_blocks(self.task, self.module, samples.to(self.device), tensor, sequence, hooks)

    def hold(
        self,
        cut: Cut,
        segments: Sequence[int] | None = None,
        *,
        worker: int = 0,
        keeps_whole: bool = False,
        sharding: Sharding | None = None,
    ) -> TorchEngine:
        made = Narrowing(self.settings, self.module, self.holding, self.optimization.updates)
        if segments is not None:
            made.take_part(cut, segments, worker)
        if sharding is not None:
            made.share(cut, sharding)
        if not self._is_built:
            return self._begin(made, cut)
        values = self.flat.values() if segments is None else None
        self.flat.flat_gradient.detach()
        self.gradient.untyped_storage().resize_(0)  # before the parameters are copied
        assembled = AssembledModel(self) if keeps_whole else None
        engine = self._begin(made, cut, values=values, assembled=assembled)
        ResizableBuffer(self.parameters).free()
        return engine

    def _begin(self, made: Narrowing, cut: Cut, **given: Any) -> TorchEngine:
        engine = TorchEngine(
            made.settings,
            made.module,
            made.holding,
            account=self.account,
            cut=cut,
            optimized=made.optimized,
            **given,
        )
        engine.optimization.updates.kept = made.restored
        engine.build()
        engine.account.begin()
        return engine

    @property
    def whole(self) -> TorchEngine | None:
        if self.holding.segments is None:
            return self
        return None if self._assembled is None else self._assembled.engine

    # Memory

    @property
    def parameters(self) -> Tensor:
        return self.store.parameters

    @property
    def hooked(self) -> HookedPass | None:
        return self.passes.hooked

    @property
    def laid_out(self) -> Tensor:
        return self.store.laid_out()

    @property
    def gradient(self) -> Tensor:
        return self.store.gradient

    @property
    def buffers(self) -> list[Tensor]:
        return self.flat_buffers.flats()

    def _memory(self, part: slice) -> tuple[Tensor, Tensor]:
        return self.store.memory(part)

    def place(self, parameters: Tensor | None, gradient: Tensor | None) -> None:
        if self.store.is_at(parameters, gradient):
            return  # parameters are still in memory of an earlier generation
        if self.optimization.updates.have_begun:
            raise RunError("a replica can be placed only before its first update")
        self.store.place(parameters, gradient)

    def release(self) -> None:
        storage = self.parameters.untyped_storage()
        self._released_bytes = storage.nbytes()
        storage.resize_(0)
        self.account.free("parameters", self._released_bytes)

    def reclaim(self) -> None:
        self.parameters.untyped_storage().resize_(self._released_bytes)
        self.account.add("parameters", self._released_bytes)

    # Gradients

    @property
    def called(self) -> Any:
        """The function to call with a batch: the module, or its compiled form."""
        if not self.task.compile:
            return self.module
        if self._compiled is None:
            self._compiled = compiled(self.module)
        return self._compiled

    @property
    def not_finite(self) -> str | None:
        return self.store.not_finite

    @property
    def loss_cause(self) -> str:
        return self.losses.cause

    @property
    def logged(self) -> dict[str, float]:
        return self.passes.logged

    def buckets(self, bucket_bytes: int | None = None) -> Buckets:
        gradient = self.flat.flat_gradient
        if bucket_bytes is not None and bucket_bytes != gradient.buckets.bucket_bytes:
            gradient.buckets = Buckets(self.holding.layout, bucket_bytes)
        return gradient.buckets

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None],
        checkpoint: Callable[[], None] | None,
        *,
        weight: float,
        accumulate: bool,
    ) -> float:
        if self._accelerator is not None:
            self._accelerator.begin()
        self.computed = batch
        loss = self.passes.gradient.compute(
            batch, samples, on_bucket, checkpoint, weight=weight, accumulate=accumulate
        )
        if self._accelerator is not None:
            self.device_s = self._accelerator.end()
        return loss

    def undo_buffers(self) -> None:
        self.passes.whole.undo_buffers()

    def begin_batch(self) -> None:
        if self._assembled is not None:
            self._assembled.free()
        self.losses.clear()
        self.store.begin_batch()

    def forward(
        self, segment: int, batch: Batch, part: int, samples: Source, given: BoundaryValues
    ) -> BoundaryValues | Tensor:
        return self.passes.segments.forward(segment, batch, part, samples, given)

    def backward(
        self, segment: int, part: int, given: Sequence[Tensor], way: BackwardPart = "both"
    ) -> Sequence[Tensor]:
        return self.passes.segments.backward(segment, part, given, way)

    def end_batch(self) -> None:
        self.store.end_batch()
        self.losses.end(self.not_finite)
