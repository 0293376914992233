"""Versions of a rank's parameters, for batches whose passes last beyond an update (weight stashing).

A batch pins the present version. An update does not overwrite a pinned version: it writes the new one to other memory.
So a rank stores the present version and the pinned ones, and no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from paceline.model.engines.flat_store import FlatStore
from paceline.model.memory import Account
from paceline.model.optimizer.updates import Updates


class Versions(ABC):
    """Pinned versions, by the step of the batch that pins them. A row is memory for one version."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._rows = 1
        self._present = 0

    def pin(self, step: int) -> None:
        """Preserve the present version for the batch of a step."""
        self._row_of[step] = self._present

    def unpin(self, step: int) -> None:
        """End the use of a version by the batch of a step."""
        row = self._row_of.pop(step)
        if row != self._present and row not in self._row_of.values():
            self._free.append(row)

    def bind(self, step: int) -> None:
        """Compute with the version of this batch from now on."""
        self._bind(self._row_of[step])

    def advance(self) -> None:
        """Prepare an update: copy the present version to other memory if it is pinned. Compute with it from now on."""
        if self._present in self._row_of.values():
            old, self._present = self._present, self._free.pop() if self._free else self._rows
            if self._present == self._rows:
                self._rows += 1
                self._add_row()
            self._move(old, self._present)
        self._bind(self._present)

    @abstractmethod
    def _add_row(self) -> None: ...
    @abstractmethod
    def _move(self, old: int, new: int) -> None: ...
    @abstractmethod
    def _bind(self, row: int) -> None: ...


class TorchVersions(Versions):
    """Versions of the parameters of an engine that computes."""

    def __init__(self, store: FlatStore, updates: Updates, account: Account) -> None:
        super().__init__()
        self._store = store
        self._updates = updates
        self._account = account
        self._tensors = [store.parameters]

    def _add_row(self) -> None:
        self._tensors.append(torch.empty_like(self._store.parameters))
        self._account.add("parameters", self._tensors[-1].nbytes)

    def _move(self, old: int, new: int) -> None:
        self._tensors[new].copy_(self._tensors[old])
        self._store.move_to(self._tensors[new])
        self._updates.move_to(self._tensors[new])

    def _bind(self, row: int) -> None:
        self._store.bind(self._tensors[row])


class ShapeVersions(Versions):
    """Versions of a model of shapes. Only their memory is tracked."""

    def __init__(self, nbytes: int, account: Account | None) -> None:
        """`nbytes` is the size of a version. `account` is None if memory is not recorded."""
        super().__init__()
        self._nbytes = nbytes
        self._account = account

    def _add_row(self) -> None:
        if self._account is not None:
            self._account.add("parameters", self._nbytes)

    def _move(self, old: int, new: int) -> None:
        pass

    def _bind(self, row: int) -> None:
        pass
