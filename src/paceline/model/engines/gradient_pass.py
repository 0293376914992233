"""The gradient of a batch by one pass through the whole model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from torch import nn

from paceline.context import Batch
from paceline.data.samples import Source
from paceline.model.activations import state_of
from paceline.model.engines.flat_store import FlatStore
from paceline.model.engines.settings import Settings
from paceline.model.engines.whole_forward import WholeForward
from paceline.model.gradients import ignore_bucket
from paceline.model.loss_scale import scaled, weights
from paceline.model.memory import Account
from paceline.model.memory.computed import ActivationMeter
from paceline.model.steps import micro_batches
from paceline.system.seeding import drawing


class GradientPass:
    """Passes through a whole module. Gradients are written to the flat gradient of its store."""

    def __init__(
        self,
        settings: Settings,
        module: nn.Module,
        forward: WholeForward,
        store: FlatStore,
        account: Account,
        *,
        parks: bool = False,
    ) -> None:
        """With `parks`, a pass alternates with the program."""
        self._accumulate = settings.task.accumulate
        self._loss_scale = settings.loss_scale
        # Ranks of a simulation are in one process: a parked pass must not hold the lock.
        self._drawing = nullcontext if parks else drawing
        self._forward = forward
        self._store = store
        self._meter = ActivationMeter(
            account,
            lambda: [store.parameters, *state_of(module)],
            forward.recomputing,
            forward.undo_buffers,
        )

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
        self._forward.begin()
        gradient = self._store.flat_gradient
        gradient.begin(on_bucket, checkpoint, accumulate=accumulate)
        try:
            with self._drawing():
                loss = self._compute_parts(batch, samples, weight) if batch.count else 0.0
        except BaseException:
            gradient.abandon()
            raise
        finally:
            gradient.end()
        gradient.finish_unused()
        self._forward.end(gradient.not_finite)
        return loss

    def _compute_parts(self, batch: Batch, samples: Source, weight: float) -> float:
        """Compute the gradient of a batch, in as many micro-batches as the task requires. Return the mean loss."""
        parts, loss, gradient = micro_batches(batch, self._accumulate), 0.0, self._store.flat_gradient
        if len(parts) > 1:
            gradient.begin_parts()
        for number, part in enumerate(parts):
            share = part.count / batch.count
            of_loss, of_gradient = weights(weight * share, self._loss_scale)
            gradient.begin_part(of_gradient, is_last=part is parts[-1])
            forward = partial(self._forward.loss, part, samples, share, number)
            value, trained = self._meter.forward(part.count, forward)
            try:
                scaled(value, of_loss).backward(inputs=trained)  # type: ignore[no-untyped-call]
            finally:
                self._meter.end_backward(part.count)
            loss += share * value.item()
        return loss
