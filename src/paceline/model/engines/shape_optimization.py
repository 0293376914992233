"""Updates of a model of shapes: only the memory of the optimizer state is tracked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.context import Batch
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.holding import Holding
from paceline.model.memory import Account
from paceline.model.optimizer.updates import Updates
from paceline.model.versions import ShapeVersions

_NOTHING = object()


class ShapeOptimization:
    """Shape-only version of `TorchOptimization`."""

    __slots__ = ("_account", "_booked", "_holding", "_model", "_state_bytes", "_versions")

    def __init__(self, model: ShapeModel, holding: Holding, account: Account | None) -> None:
        """`account` is None if memory is not recorded."""
        self._model = model
        self._holding = holding
        self._account = account
        self._booked: object = _NOTHING  # shard whose state was recorded last
        self._versions: ShapeVersions | None = None
        self._state_bytes: dict[tuple[int, int] | None, int] = {}  # by shard that is updated

    @property
    def updates(self) -> Updates:
        return self._model.updates

    def layer_squares(
        self, shard: slice | None, norm: float | None, *, of: Sequence[Batch], step: int
    ) -> Tensor:
        whole = self._model.holding
        return torch.empty(len(whole.layout.names), 2, dtype=whole.reduction_dtype, device="meta")

    def update(
        self,
        shard: slice | None,
        norm: float | None,
        *,
        advance: bool,
        of: Sequence[Batch],
        step: int,
        squares: Tensor | None = None,
    ) -> None:
        if self._versions is not None:
            self._versions.advance()
        if shard is self._booked:  # most ranks update the same shard every time
            return
        self._booked = shard
        holding = self._holding
        if self._account is None or not holding.layout.length:
            return
        key = None if shard is None else (shard.start, shard.stop)
        nbytes = self._state_bytes.get(key)
        if nbytes is None:
            whole, state = self._model.holding.layout, self._model.memory.optimizer_state()
            nbytes = self._state_bytes[key] = holding.optimizer_bytes(whole, state, shard)
        self._account.hold("optimizer", nbytes)

    def keep_versions(self, nbytes: int) -> ShapeVersions:
        """Return the versions of the parameters. Each has `nbytes` bytes."""
        if self._versions is None:
            self._versions = ShapeVersions(nbytes, self._account)
        return self._versions

    def advance_schedule(self, updates: int) -> None:
        pass

    def reset(self) -> None:
        self._model.updates.forget()
        self._booked = _NOTHING
        if self._account is not None:
            self._account.hold("optimizer", 0)

    def moments(self) -> Sequence[Tensor]:
        return self._model.moments()

    def split(self, parts: int) -> Sequence[slice]:
        return self._model.split(self._holding, parts)
