"""Base of optimizers that scale the update of a parameter by norms of the whole parameter.

A step has two halves: `begin` returns squared norms, and `finish` updates with them. If ranks hold parts of a
parameter, they sum the squares in between, so that each rank updates its part as if it had the whole parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.errors import ConfigurationError


class Trained(NamedTuple):
    """The parameters of a group that have a gradient."""

    group: dict[str, Any]
    parameters: list[Tensor]
    gradients: list[Tensor]


class LayerwiseOptimizer(torch.optim.Optimizer):
    """An optimizer that scales the update of each parameter by norms of the parameter."""

    reduced: Sequence[Tensor] | None = None
    """Squared norms of whole parameters, for the `step` after `begin`. None if this rank has whole parameters."""

    def begin(self) -> list[tuple[Tensor, Tensor]]:
        """Prepare an update. Return a parameter with its two squared norms, for each parameter with a gradient."""
        raise NotImplementedError

    def finish(self, squares: Sequence[Tensor]) -> None:
        """Update, given the squared norms of whole parameters, in the order of `begin`."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        reduced, self.reduced = self.reduced, None
        self.finish([squares for _, squares in self.begin()] if reduced is None else reduced)
        return loss

    def _trained(self) -> Iterator[Trained]:
        """Yield the groups that have parameters with gradients."""
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if trained:
                yield Trained(group, trained, [parameter.grad for parameter in trained])

    def _states(self, parameters: Sequence[Tensor], key: str) -> list[Tensor]:
        """Return state of the shape of each parameter. It begins with zeros."""
        for parameter in parameters:
            if key not in self.state[parameter]:
                self.state[parameter][key] = torch.zeros_like(parameter)
        return [self.state[parameter][key] for parameter in parameters]


def squares_of(firsts: Sequence[Tensor], seconds: Sequence[Tensor]) -> list[Tensor]:
    """Return the squared norms of pairs of tensors."""
    norms = torch._foreach_norm([*firsts, *seconds])
    return [torch.stack(pair).square() for pair in zip(norms, norms[len(firsts) :], strict=False)]


def norms_of(squares: Iterator[Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Return the next `count` pairs of norms as two tensors: the first and the second norm of each pair."""
    first, second = torch.stack(list(islice(squares, count))).sqrt().unbind(1)
    return first, second


def check_at_least(argument: str, value: float, bound: float = 0.0) -> None:
    if not bound <= value < float("inf"):
        raise ConfigurationError(argument, f"must be a finite number of at least {bound:g}", value)


def check_fraction(argument: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigurationError(argument, "must be at least 0 and below 1", value, "0.9 is usual")
