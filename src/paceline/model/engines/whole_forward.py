"""The forward pass through a whole model: from samples to the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from paceline.context import Batch
from paceline.data.samples import Source
from paceline.model.autocast import computing
from paceline.model.buffers import FlatBuffers
from paceline.model.engines.inputs import Inputs
from paceline.model.engines.loss_watch import LossWatch
from paceline.model.engines.settings import Settings
from paceline.model.memory import Account
from paceline.model.memory.computed import tensor_bytes
from paceline.model.recomputing import Recomputing
from paceline.model.steps import UserStep
from paceline.task.calls import loss_from, outputs_of


class WholeForward:
    """Forward passes of a module, or of the user's step."""

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        called: Callable[[], Any],
        buffers: FlatBuffers,
        inputs: Inputs,
        losses: LossWatch,
        account: Account,
    ) -> None:
        """`called` returns the function to call with a batch: the module, or its compiled form."""
        task = settings.task
        self._task, self._autocast = task, settings.autocast
        self._module = module
        self._called = called
        self._buffers = buffers
        self._inputs = inputs
        self._losses = losses
        self._account = account
        self._user_step = UserStep(task, module, buffers.flats) if task.step is not None else None
        self.recomputing = (
            Recomputing(module, lambda: computing(settings.autocast)) if task.recompute else None
        )
        self._buffers_before: list[Tensor] = []  # copies from before the last batch; empty if there was none
        self.logged: dict[str, float] = {}
        """Values that the user's step returned for the last batch in addition to the loss."""

    def begin(self) -> None:
        """Prepare for the first micro-batch of a batch."""
        buffers = self._buffers.flats()
        self._buffers_before = [buffer.clone() for buffer in buffers]
        if buffers:
            self._account.hold("buffers", tensor_bytes(buffers) + tensor_bytes(self._buffers_before))
        self.logged = {}
        self._losses.clear()

    def end(self, not_finite: str | None) -> None:
        """End a batch. `not_finite` is a parameter with a gradient that is not finite."""
        self._losses.end(not_finite)

    def undo_buffers(self) -> None:
        """Restore the buffers (BatchNorm statistics and the like): the last batch was cancelled."""
        for buffer, before in zip(self._buffers.flats(), self._buffers_before, strict=True):
            buffer.copy_(before)

    def loss(
        self, batch: Batch, samples: Source, share: float, part: int
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """Return the loss of a micro-batch, and the parameters that it trains: None for all parameters.

        `share` is the micro-batch's share of the rank's batch, and `part` is its number.
        """
        content = self._inputs.fetch(batch, samples, part)
        if not self._module.training:
            self._module.train()
        with computing(self._autocast), self._recomputed():
            if self._user_step is None:
                outputs = outputs_of(self._task, self._called(), content)
                loss = loss_from(self._task, outputs, content)
                self._losses.look(loss, outputs, content)
                return loss, None
            made = self._user_step.loss(self._called(), batch, content)
        for name, value in made.logged.items():
            self.logged[name] = self.logged.get(name, 0.0) + share * value
        return made.value, made.trained

    def _recomputed(self) -> AbstractContextManager[None]:
        return nullcontext() if self.recomputing is None else self.recomputing.forward()
