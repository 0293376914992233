"""The gradient of a batch by one pass through the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn

from paceline.context import Batch
from paceline.data.samples import Source
from paceline.model.activations import state_of
from paceline.model.autocast import computing
from paceline.model.buffers import FlatBuffers
from paceline.model.engines.flat_store import FlatStore
from paceline.model.engines.inputs import Inputs
from paceline.model.engines.loss_watch import LossWatch
from paceline.model.engines.settings import Settings
from paceline.model.gradients import ignore_bucket
from paceline.model.memory import Account
from paceline.model.memory.computed import ActivationMeter, tensor_bytes
from paceline.model.recomputing import Recomputing
from paceline.model.steps import UserStep, micro_batches
from paceline.system.seeding import drawing
from paceline.task.calls import loss_from, outputs_of


class GradientPass:
    """Passes through a whole module. Gradients are written to the flat gradient of its store."""

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        called: Callable[[], Any],
        store: FlatStore,
        buffers: FlatBuffers,
        inputs: Inputs,
        losses: LossWatch,
        account: Account,
    ) -> None:
        """`called` returns what is called with a batch: the module, or its compiled form."""
        self._task, self._autocast = settings.task, settings.autocast
        self._module = module
        self._called = called
        self._store = store
        self._buffers = buffers
        self._inputs = inputs
        self._losses = losses
        self._account = account
        task = settings.task
        self._user_step = UserStep(task, module, buffers.flats) if task.step is not None else None
        self._recomputing = (
            Recomputing(module, lambda: computing(settings.autocast)) if task.recompute else None
        )
        self._meter = ActivationMeter(
            account,
            lambda: [store.parameters, *state_of(module)],
            self._recomputing,
            self.undo_buffers,
        )
        self.buffers_before: list[Tensor] = []
        """Copies of the buffers before the last batch. Empty if there was none."""
        self.logged: dict[str, float] = {}
        """Values that the user's step returned for the last batch in addition to the loss."""

    def compute(
        self,
        batch: Batch,
        samples: Source,
        on_bucket: Callable[[int], None] = ignore_bucket,
        checkpoint: Callable[[], None] | None = None,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> float:
        """See `Replica.compute`."""
        self._store.refresh()
        buffers = self._buffers.flats()
        self.buffers_before = [buffer.clone() for buffer in buffers]
        if buffers:
            self._account.hold("buffers", tensor_bytes(buffers) + tensor_bytes(self.buffers_before))
        self.logged = {}
        self._losses.clear()
        gradient = self._store.flat_gradient
        gradient.begin(on_bucket, checkpoint, accumulate=accumulate)
        try:
            with drawing():
                loss = self._compute_parts(batch, samples, weight) if batch.count else 0.0
        except BaseException:
            gradient.abandon()
            raise
        finally:
            gradient.end()
        gradient.finish_unused()
        return loss

    def undo_buffers(self) -> None:
        """Restore the buffers (BatchNorm statistics and the like): the last batch was cancelled."""
        for buffer, before in zip(self._buffers.flats(), self.buffers_before, strict=True):
            buffer.copy_(before)

    def _compute_parts(self, batch: Batch, samples: Source, weight: float) -> float:
        """Compute the gradient of a batch, in as many micro-batches as the task requires. Return the mean loss."""
        parts, loss, gradient = micro_batches(batch, self._task.accumulate), 0.0, self._store.flat_gradient
        if len(parts) > 1:
            gradient.begin_parts()
        for number, part in enumerate(parts):
            share = part.count / batch.count
            gradient.begin_part(weight * share, is_last=part is parts[-1])
            forward = partial(self._forward, part, samples, share, number)
            value, trained = self._meter.forward(part.count, forward)
            try:
                value.backward(inputs=trained)  # type: ignore[no-untyped-call]
            finally:
                self._meter.end_backward(part.count)
            loss += share * value.item()
        return loss

    def _forward(
        self, batch: Batch, samples: Source, share: float, part: int
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """Return the loss, and the parameters that it trains. None for all parameters."""
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
        return nullcontext() if self._recomputing is None else self._recomputing.forward()
