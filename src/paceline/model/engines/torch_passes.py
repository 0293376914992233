"""Forward and backward passes of a TorchEngine. Each kind of pass is created on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from paceline.model.cutting.cut import Cut
from paceline.model.engines.gradient_pass import GradientPass
from paceline.model.engines.segment_passes import SegmentPasses
from paceline.model.engines.whole_forward import WholeForward
from paceline.model.hooks.blocks import Blocks
from paceline.model.hooks.hooked_pass import HookedPass

if TYPE_CHECKING:
    from paceline.model.engines.torch_engine import TorchEngine


class TorchPasses:
    """Passes through the whole model of an engine, or through the segments that it holds."""

    def __init__(self, engine: TorchEngine, cut: Cut | None) -> None:
        self._engine = engine
        self._cut = cut

    @cached_property
    def whole(self) -> WholeForward:
        """Forward passes through the whole model."""
        engine = self._engine
        engine.build()
        parts = engine.flat_buffers, engine.inputs, engine.losses, engine.account
        # Hooks would be compiled with the module.
        called = (lambda: engine.called) if self._cut is None else (lambda: engine.module)
        return WholeForward(engine.settings, engine.module, called, *parts)

    @cached_property
    def gradient(self) -> GradientPass:
        engine = self._engine
        parts = self.whole, engine.flat, engine.account
        parks = engine.task.sync_batch_norm
        return GradientPass(engine.settings, engine.module, *parts, parks=parks)

    @cached_property
    def hooked(self) -> HookedPass | None:
        """None if the model is not cut, or cut into segments."""
        if self._cut is None or not isinstance(self._cut.model, Blocks):
            return None
        engine = self._engine
        parts = self.whole, engine.shards, engine.account
        return HookedPass(engine.settings, engine.module, self._cut.model.names, *parts)

    @cached_property
    def segments(self) -> SegmentPasses:
        assert self._cut is not None, "hold comes first"
        engine = self._engine
        held = engine.holding.held(self._cut)
        parts = engine.store, engine.inputs, engine.losses, engine.account
        return SegmentPasses(engine.settings, engine.module, self._cut, held, *parts)

    @property
    def logged(self) -> dict[str, float]:
        """Values that the user's step returned for the last batch in addition to the loss."""
        return self.whole.logged if self._cut is None or self.hooked is not None else {}
