"""All-reduce by torch.distributed's Gloo, for tensors on CPUs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor

__all__ = ["NativeGroups"]


class NativeGroups:
    """Process groups among ranks of one host, each made when it is first used."""

    def __init__(self, store_path: str, ranks: int, deadline_s: float) -> None:
        self._store_path = store_path
        self._ranks = ranks
        self._deadline = timedelta(seconds=deadline_s)
        self._groups: dict[tuple[int, ...], Any] = {}

    def all_reduce(self, tensor: Tensor, rank: int, group: Sequence[int], op: str) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        options = dist.AllreduceOptions()
        options.reduceOp = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}.get(op, dist.ReduceOp.SUM)
        self._group(rank, tuple(group)).allreduce([tensor], options).wait()

    def _group(self, rank: int, group: tuple[int, ...]) -> Any:
        if group not in self._groups:
            self._groups[group] = self._join(rank, group)
        return self._groups[group]

    def _join(self, rank: int, group: tuple[int, ...]) -> Any:
        dist: Any = importlib.import_module("torch.distributed")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: nothing needs to leave it
        store: Any = dist.FileStore(self._store_path, -1)
        prefix = dist.PrefixStore("-".join(map(str, group)), store)
        return dist.ProcessGroupGloo(prefix, group.index(rank), len(group), self._deadline)
