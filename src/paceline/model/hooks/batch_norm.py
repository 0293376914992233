"""BatchNorm with the statistics of the whole batch: workers exchange the statistics of each layer.

A layer exchanges counts, means and sums of squared deviations in the forward pass, and sums over the gradients of its
outputs in the backward pass. The pass parks for each exchange: see `StatisticsEvent`. Values of a row are exact copies,
and all workers combine the rows in the same order, so all have the same bits.

Sources: Ioffe, Szegedy, "Batch Normalization", 2015; the sum of squared deviations of several parts: Chan, Golub,
LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from paceline.context import Batch
from paceline.errors import ConfigurationError, RunError


class StatisticsEvent(NamedTuple):
    """A point in a pass at which all workers exchange the statistics of a BatchNorm layer."""

    table: Tensor
    """Flat: a row for each worker. That of this worker is filled in; all-gather the others."""
    is_backward: bool


class EmptySlice(Batch):
    """The first sample of a global batch with weight 0, in place of an empty slice.

    A worker without samples takes part in the exchanges of the others.
    """

    __slots__ = ()

    @classmethod
    def of(cls, batch: Batch) -> EmptySlice:
        return cls(batch.step, 0, 1, batch.total, batch.whole, batch.update)

    @property
    def weight(self) -> float:
        return 0.0


def filled(batch: Batch) -> Batch:
    """Return a batch, or the first sample of the global batch with weight 0 if it is empty."""
    return batch if batch.count else EmptySlice.of(batch)


def norms_of(module: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def check_strategy_and_model(name: str, module: nn.Module, *, is_possible: bool) -> None:
    """Refuse models without BatchNorm, and strategies with which the option is not possible.

    In these, workers do not compute the slices of one batch at the same time.
    """
    if not norms_of(module):
        bound = "must not be given for a model without a layer of type nn.BatchNorm"
        raise ConfigurationError("sync_batch_norm", bound, type(module).__name__, "leave it out")
    if not is_possible:
        bound = (
            "must not be given with a strategy in which workers do not compute the slices of one batch at the same "
            "time and in one pass: asynchronous workers, local steps, discarded gradients, micro-batches"
        )
        remedy = "leave it out, or use single, all-reduce, map-reduce, sync, central-storage, zero or layers"
        raise ConfigurationError("sync_batch_norm", bound, name, remedy)


class SharedStatistics:
    """The BatchNorm layers of one worker's module. They share statistics during its passes, and only then."""

    def __init__(self, module: nn.Module, workers: int, place: int) -> None:
        """`place` is the row of this worker."""
        self._layers = norms_of(module)
        parameter = next(module.parameters())
        self._has_values = not parameter.is_meta
        self._exact = _exact(parameter.dtype)
        self._workers = workers
        self._place = place
        self._park: Callable[[StatisticsEvent], None] | None = None
        self._weight = 1.0

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self._layers)

    @contextmanager
    def sharing(self, park: Callable[[StatisticsEvent], None], weight: float) -> Iterator[None]:
        """Return a context for the passes of a batch with this weight. `park` waits until the table is complete.

        Without values it parks at its end, as often as a pass that calls each layer once in the order of registration.
        """
        if not self._has_values:
            yield
            for event in self._shapes():
                park(event)
            return
        self._park, self._weight = park, weight
        before = [layer.__dict__.get("forward") for layer in self._layers]
        for number, layer in enumerate(self._layers):
            # An attribute of the instance takes precedence over the method of its class.
            layer.__dict__["forward"] = self._shared(number, layer.forward)
        try:
            yield
        finally:
            for layer, forward in zip(self._layers, before, strict=True):
                layer.__dict__.pop("forward")
                if forward is not None:
                    layer.__dict__["forward"] = forward
            self._park = None

    def _shapes(self) -> Iterator[StatisticsEvent]:
        for is_backward in (False, True):
            for layer in reversed(self._layers) if is_backward else self._layers:
                columns = 2 * layer.num_features + (1 if is_backward else 2)
                table = torch.empty(self._workers * columns, dtype=self._exact, device="meta")
                yield StatisticsEvent(table, is_backward)

    def _shared(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def shared(*args: Any, **kwargs: Any) -> Any:
            with _Replaced(partial(self._normalise, number)):
                return forward(*args, **kwargs)

        return shared

    def _normalise(
        self,
        number: int,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Do what `F.batch_norm` does, with the statistics of all workers."""
        if not training:
            return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        with torch.no_grad():
            values = input.detach().to(_exact(input.dtype))
            total, mean, variance = self._statistics(number, values)
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = variance * (total / (total - 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        sums = partial(self._sums, number, total)
        made: Tensor = _Normalise.apply(input, weight, bias, mean, variance, eps, sums)  # type: ignore[no-untyped-call]
        return made

    def _statistics(self, number: int, values: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return count, mean and variance of each channel over all workers."""
        variance, mean = torch.var_mean(values, _but_channels(values), correction=0)
        count = values.numel() // values.shape[1] if self._weight else 0
        row = torch.cat([mean.new_tensor([count]), mean, variance * count])
        rows = self._exchange(number, row, is_backward=False)
        counts, (means, squares) = rows[:, :1], rows[:, 1:].chunk(2, dim=1)
        total = counts.sum().item()
        if total <= 1:
            raise ValueError(
                f"BatchNorm needs more than 1 value per channel over all workers but got {total:g}"
            )
        joint = (counts * means).sum(0) / total
        variance = (squares + counts * (means - joint).square()).sum(0) / total
        return total, joint, variance

    def _sums(self, number: int, total: float, sums: Tensor) -> Tensor:
        """Return the means over all workers' samples, in terms of this worker's own loss.

        A worker computes the gradient of the mean loss of its slice. The weight scales it to the whole batch.
        """
        weight = self._weight
        row = sums * weight if weight else torch.zeros_like(sums)
        rows = self._exchange(number, row, is_backward=True)
        return rows.sum(0) / (total * weight) if weight else row

    def _exchange(self, number: int, row: Tensor, *, is_backward: bool) -> Tensor:
        """Return the rows of all workers."""
        assert self._park is not None
        key = number + 1 + len(self._layers) * is_backward
        table = row.new_zeros(self._workers, 1 + len(row))
        table[self._place, 0] = key
        table[self._place, 1:] = row
        self._park(StatisticsEvent(table.view(-1), is_backward))
        others = [int(other) for other in table[:, 0].tolist() if other != key]
        if others:
            raise RunError(
                f"workers compute BatchNorm layers {number + 1} and {others[0]} at the same time, numbered in the "
                "order of model.modules(): with sync_batch_norm=True all workers must call the layers in one order"
            )
        return table[:, 1:]


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the statistics of values."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _but_channels(values: Tensor) -> list[int]:
    return [place for place in range(values.dim()) if place != 1]


class _Replaced(TorchFunctionMode):
    """Calls a function in place of `F.batch_norm`: also in layers of other packages with a `forward` of their own."""

    def __init__(self, normalise: Callable[..., Tensor]) -> None:
        super().__init__()
        self._normalise = normalise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.batch_norm:
            return self._normalise(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Normalise(torch.autograd.Function):
    """Normalisation by given statistics that depend on the input. `sums` completes the sums of a backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        sums: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(values, weight, mean, variance)
        ctx.eps, ctx.sums = eps, sums
        scale, shift = (None if each is None else each.to(mean.dtype) for each in (weight, bias))
        made = functional.batch_norm(values.to(mean.dtype), mean, variance, scale, shift, False, 0.0, eps)
        return made.to(values.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, variance = ctx.saved_tensors
        shape = [1, -1, *[1] * (values.dim() - 2)]
        scale = (variance + ctx.eps).rsqrt()
        normal = (values.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        given = gradient.to(mean.dtype)
        other = _but_channels(values)
        of_bias, of_weight = given.sum(other), (given * normal).sum(other)
        of_values = None
        if ctx.needs_input_grad[0]:
            mean_given, mean_product = ctx.sums(torch.cat([of_bias, of_weight])).chunk(2)
            if weight is not None:
                scale = scale * weight.to(scale.dtype)
            centred = given - mean_given.view(shape) - normal * mean_product.view(shape)
            of_values = (centred * scale.view(shape)).to(values.dtype)
        if weight is None:
            return of_values, None, None, None, None, None, None
        return of_values, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None, None, None, None
