"""A replica's flat gradient. Backward fills it parameter by parameter, and each bucket is passed on when it is
full."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.context import BUCKET_BYTES
from paceline.model.buckets import Buckets
from paceline.model.finite import not_finite_in
from paceline.model.layout import Layout, real_view


def ignore_bucket(_bucket: int) -> None:
    """Ignore a bucket: for callers that need only the whole gradient."""


class FlatGradient:
    """Flat gradient, filled by hooks of a module's parameters during backward."""

    def __init__(
        self,
        module: nn.Module,
        trainable: Sequence[Tensor],
        layout: Layout,
        *,
        watches_layers: bool = True,
        has_hooks: bool = True,
    ) -> None:
        """Without `watches_layers`, the checkpoint is called only after each parameter's gradient.

        Without `has_hooks`, backward leaves the gradients in the parameters, and the caller adds them: see `add`.
        """
        # Layer hooks cost time, so they are registered on first use.
        self._unwatched: nn.Module | None = module if watches_layers else None
        self._trainable = trainable
        self._layout = layout
        self.buckets = Buckets(layout, BUCKET_BYTES)
        self.not_finite: str | None = None
        """Parameter with a NaN or infinite value in its last gradient. The gradient must not be used. None if all are
        finite.
        """
        self._on_bucket: Callable[[int], None] = ignore_bucket
        self._checkpoint: Callable[[], None] | None = None
        self._weight, self._accumulates, self._is_last_part = 1.0, False, True
        self._waiting: list[int] = []
        self._fired = bytearray(len(trainable))
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(trainable if has_hooks else ())
        ]

    def detach(self) -> None:
        """Remove the hooks, because another store receives the gradients from now on."""
        for handle in self._handles:
            handle.remove()

    def hold(self, flat: Tensor) -> None:
        """Fill this tensor from now on."""
        self.flat = flat
        self._views = self._layout.views(flat)
        self._converts = any(flat.device != each.device for each in self._trainable[:1])
        self._converts |= not self._layout.is_plain

    # A computation

    def begin(
        self, on_bucket: Callable[[int], None], checkpoint: Callable[[], None] | None, *, accumulate: bool
    ) -> None:
        self.not_finite = None
        self._on_bucket, self._checkpoint = on_bucket, checkpoint
        self._accumulates = accumulate
        self._runs, self._bucket_of = self.buckets.runs, self.buckets.of
        self._waiting = [len(run) for run in self._runs]
        self._fired = bytearray(len(self._trainable))
        if checkpoint is not None:
            self._watch_layers()

    def begin_parts(self) -> None:
        """Start a gradient that is the sum of several parts."""
        if not self._accumulates:
            self.flat.zero_()
            self._accumulates = True

    def begin_part(self, weight: float, *, is_last: bool) -> None:
        """Start a part. The gradients of the next backward are multiplied by `weight`. Buckets become ready in the last
        part.
        """
        self._weight, self._is_last_part = weight, is_last
        self._fired = bytearray(len(self._trainable))

    def abandon(self) -> None:
        """Reset after an interrupted backward."""
        for parameter in self._trainable:
            parameter.grad = None

    def end(self) -> None:
        self._checkpoint = None

    def finish_unused(self) -> None:
        """Set the gradient to zero for parameters that this batch did not use."""
        self._is_last_part = True
        if sum(self._fired) == len(self._fired):
            return
        for number in reversed(range(len(self._fired))):
            if not self._fired[number]:
                if not self._accumulates:
                    self._views[number].zero_()
                self._mark_ready(number)

    # Without hooks, for callers that compute gradients themselves

    def clear(self) -> None:
        """Start a new gradient. Its memory is undefined until `check`."""
        self._fired = bytearray(len(self._trainable))
        self.not_finite = None

    def add(self, number: int, gradient: Tensor) -> None:
        """Add to the gradient of a parameter."""
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        view = self._views[number]
        own = real_view(dense).to(view) if self._converts else dense
        if self._fired[number]:
            view.add_(own)
        else:  # one pass over memory instead of two
            view.copy_(own)
            self._fired[number] = 1

    def check(self) -> None:
        """Set the gradient to zero for parameters without one, and check that all of it is finite."""
        for number, fired in enumerate(self._fired):
            if not fired:
                self._views[number].zero_()
        self._check(range(len(self._trainable)))

    # During backward

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        # Python's garbage collector cannot see that autograd references the hook. If the hook had a strong
        # reference to this object, which references the parameter, this cycle would never be freed.
        own = weakref.ref(self)

        def take(parameter: Tensor) -> None:
            gradient, taker = parameter.grad, own()
            assert gradient is not None
            if taker is None:
                return
            parameter.grad = None
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            taker._take(number, gradient)

        return take

    def _take(self, number: int, gradient: Tensor) -> None:
        view = self._views[number]
        if self._converts:
            gradient = real_view(gradient).to(view)
        if self._fired[
            number
        ]:  # a re-entrant backward pass (activation checkpointing) may call the hook twice
            view.add_(gradient, alpha=self._weight)
            self._check(range(number, number + 1))
            return
        if self._accumulates:
            view.add_(gradient, alpha=self._weight)
        else:  # one pass over memory instead of zeroing, accumulating and scaling
            torch.mul(gradient, self._weight, out=view)
        self._mark_ready(number)
        if self._checkpoint is not None:
            self._checkpoint()

    def _mark_ready(self, number: int) -> None:
        self._fired[number] = 1
        if not self._is_last_part:
            return
        bucket = self._bucket_of[number]
        self._waiting[bucket] -= 1
        if not self._waiting[bucket] and self._check(self._runs[bucket]):
            self._on_bucket(bucket)

    def _check(self, run: range) -> bool:
        """Return whether the gradients of these parameters are finite. Called before a bucket is passed on."""
        found = not_finite_in(self._layout, self.flat, run)
        self.not_finite = self.not_finite or found
        return found is None

    def _watch_layers(self) -> None:
        """Register hooks that call the checkpoint before each layer."""
        if self._unwatched is None:
            return
        module, self._unwatched = self._unwatched, None
        for layer in module.modules():
            if next(layer.children(), None) is None:
                layer.register_forward_pre_hook(self._before_layer)

    def _before_layer(self, _layer: nn.Module, _inputs: Any) -> None:
        if self._checkpoint is not None:
            self._checkpoint()
