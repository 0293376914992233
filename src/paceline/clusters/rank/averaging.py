"""The moving average of the weights that a task may ask for: the reporter follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.replica.averages import MovingAverage

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank
    from paceline.replica.replica import Replica

__all__ = ["Averaging"]

_PREFIX = "ema/"


class Averaging:
    """The average of the run's model over its steps."""

    __slots__ = ("_account", "_average", "_kept", "_rank", "_steps")

    def __init__(self, rank: Rank, decay: float) -> None:
        self._rank = rank
        self._average = MovingAverage(decay)
        self._steps = 0
        self._kept: dict[str, Tensor] = {}  # what a checkpoint had of it, by parameter
        self._account = rank.ledger.account()

    @property
    def values(self) -> Tensor | None:
        self._lay_out()
        return self._average.values

    def _lay_out(self) -> None:
        """When it is needed, not when it is restored: a replica that shares segments has parameters in their order."""
        if self._kept:
            flats = [self._kept[name].reshape(-1) for name in self._whole.layout.names]
            self._average.values, self._kept = torch.cat(flats), {}

    @property
    def _whole(self) -> Replica:
        whole: Replica | None = self._rank.model.replica.whole
        assert whole is not None, "a reporter has the whole model"
        return whole

    def follow(self, steps: int) -> None:
        """Take in the parameters after so many steps, once."""
        if steps > self._steps:
            self._steps = steps
            self._lay_out()
            self._average.update(self._whole.parameters)
            self._account.hold("parameters", self._whole.parameters.nbytes)

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors by the names of parameters, and how far it is."""
        if self.values is None:
            return {}, {}
        layout = self._whole.layout
        views = layout.views(self.values)
        named = {_PREFIX + name: view for name, view in zip(layout.names, views, strict=True)}
        return named, {"averaged_steps": self._steps}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        kept = {name: tensors.get(_PREFIX + name) for name in self._whole.layout.names}
        if all(tensor is not None for tensor in kept.values()):
            self._kept = {name: tensor.clone() for name, tensor in kept.items() if tensor is not None}
            self._steps = facts["averaged_steps"]
