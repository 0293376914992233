"""Units that a rank shares with other ranks: shapes, and the memory that they would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.model.holding import Holding
from paceline.model.memory import Account


class ShapeShards:
    """Shape-only version of `ShardStore`."""

    __slots__ = ("_account", "_gathered", "_holding", "_in_batch", "_spaces", "_summed")

    def __init__(self, holding: Holding, account: Account | None) -> None:
        """`account` is None if memory is not recorded."""
        self._holding = holding
        self._account = account
        self._in_batch = False
        self._gathered: set[int] = set()
        self._summed: set[int] = set()
        self._spaces: dict[int, Tensor] = {}

    def begin_batch(self) -> None:
        self._in_batch = True

    def end_batch(self) -> None:
        self._in_batch = False  # gathers after this point are for evaluation or saving

    def gather(self, place: int) -> Tensor:
        if self._holding.frees_parameters and self._in_batch:
            self._add("parameters", self._gathered, place)
        return self._unit(place, self._holding.layout.dtype)

    def refresh(self, place: int) -> None:
        pass

    def free(self, place: int) -> None:
        self._remove("parameters", self._gathered, place)

    def note_backward(self, segment: int) -> None:
        """Record the gradients of a segment's units."""
        for place, unit in enumerate(self._holding.units):
            if segment in unit.group.users:
                self._add("gradients", self._summed, place)

    def unit_gradient(self, place: int, into: Tensor | None = None) -> Tensor:
        self._add("gradients", self._summed, place)
        return self._unit(place, self._holding.reduction_dtype)

    def gradients_of(self, names: Sequence[str]) -> list[Tensor]:
        layout = self._holding.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        dtype = self._holding.reduction_dtype
        return [torch.empty(shapes[name], dtype=dtype, device="meta") for name in names]

    def gradient_space(self, place: int) -> Tensor:
        space = self._spaces.get(place)
        if space is None:  # created once, because creating a tensor takes longer than the rest of an exchange
            own = self._holding.units[place].own(self._holding.shard)
            length, dtype = own.stop - own.start, self._holding.reduction_dtype
            space = self._spaces[place] = torch.empty(length, dtype=dtype, device="meta")
        return space

    def keep_gradient(self, place: int, own: Tensor) -> None:
        self._remove("gradients", self._summed, place)

    def _add(self, kind: Literal["parameters", "gradients"], allocated: set[int], place: int) -> None:
        if self._account is not None and place not in allocated:
            allocated.add(place)
            self._account.add(kind, self._holding.unit_bytes(place, kind))

    def _remove(self, kind: Literal["parameters", "gradients"], allocated: set[int], place: int) -> None:
        if self._account is not None and place in allocated:
            allocated.discard(place)
            self._account.free(kind, self._holding.unit_bytes(place, kind))

    def _unit(self, place: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(self._holding.units[place].layout.length, dtype=dtype, device="meta")
