"""Why a loss is not finite."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline.model.loss_trial import try_once
from paceline.task.calls import target_of
from paceline.task.losses import cause_of
from paceline.task.task import Task


class LossWatch:
    """Looks at the losses of one batch."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.cause = ""
        """Why the last loss was not finite. Empty if it was finite, or if the cause is unknown."""

    def clear(self) -> None:
        self.cause = ""

    def look(self, loss: Tensor, outputs: Any, content: Any) -> None:
        self.cause = self.cause or cause_of(loss, outputs, target_of(content))
        try_once(self._task, outputs, content)
