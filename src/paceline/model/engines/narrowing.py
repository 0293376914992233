"""From the module of a whole model to the module of a rank that holds a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from paceline.model.cutting.cut import Cut
from paceline.model.engines.settings import Settings
from paceline.model.holding import Holding, Sharding
from paceline.model.layout import Layout
from paceline.model.optimizer.placeholders import whole_parameters
from paceline.model.optimizer.updates import SavedState, Updates
from paceline.model.stages.stripping import stripped


class Narrowing:
    """Module, holding and settings of a rank, reduced step by step to its part.

    No memory is allocated for parameters.
    """

    def __init__(self, settings: Settings, module: nn.Module, holding: Holding, updates: Updates) -> None:
        self.settings = settings
        self.module = module
        self.holding = holding
        self.optimized = updates.whole
        self._updates = updates

    def take_part(self, cut: Cut, segments: Sequence[int], worker: int) -> None:
        """Keep these segments only. Random numbers are those of worker `worker` with the whole model."""
        self.module = stripped(self.module, cut, segments)
        self.optimized = whole_parameters(self.module, self.holding.layout)
        self.settings = replace(self.settings, rank=worker)
        self.holding = self.holding.part(cut, segments)
        layout = Layout.of(self.module)
        # A layer with its own `__deepcopy__` keeps all parameters.
        if layout.names != self.holding.layout.names:
            layout = replace(layout, within=self.holding.layout.within)
            self.holding = replace(self.holding, layout=layout)

    def share(self, cut: Cut, sharding: Sharding) -> None:
        """Keep one shard of each segment."""
        self.holding = self.holding.sharded(cut, sharding, elementwise=self._updates.work_elementwise)

    @property
    def restored(self) -> SavedState | None:
        """Optimizer state from a checkpoint, in the new layout. None if there is none."""
        before = self._updates.kept
        return None if before is None else before.laid_out(self.holding.layout)
