"""Losses of a batch: why one is not finite, and the loss scale."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline.model.engines.settings import Settings
from paceline.model.loss_trial import try_once
from paceline.task.calls import target_of
from paceline.task.losses import cause_of


class LossWatch:
    """Looks at the losses of one batch."""

    def __init__(self, settings: Settings) -> None:
        self._task, self._scale = settings.task, settings.loss_scale
        self.cause = ""
        """Why the last loss was not finite. Empty if it was finite, or if the cause is unknown."""

    def clear(self) -> None:
        self.cause = ""
        if self._scale is not None:
            self._scale.begin()

    def end(self, not_finite: str | None) -> None:
        """End the batch. `not_finite` is a parameter with a gradient that is not finite."""
        if self._scale is not None:
            self._scale.end(not_finite)

    def look(self, loss: Tensor, outputs: Any, content: Any) -> None:
        self.cause = self.cause or cause_of(loss, outputs, target_of(content))
        try_once(self._task, outputs, content)
