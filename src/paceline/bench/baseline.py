"""The baseline: Gloo by torch.distributed, in the very processes that run our own algorithms."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

from torch import Tensor

from paceline import collectives
from paceline.bench.patterns import ROOT
from paceline.context import Context

__all__ = ["Gloo"]

_DEADLINE = timedelta(seconds=60)


class Gloo:
    """One rank's way to call Gloo for a pattern. The group and the memory for results are made outside timed calls."""

    def __init__(self, pattern: str, store_path: str) -> None:
        self._pattern = pattern
        self._store_path = store_path
        self._group: Any = None
        self._result: Tensor | None = None

    async def run(self, ctx: Context, tensor: Tensor) -> Tensor:
        """Do what the pattern does; return the tensor that has the result."""
        if self._pattern == "all-reduce":
            await collectives.all_reduce(ctx, tensor, "native")
            return tensor
        if self._group is None:
            self._group = self._join(ctx)
        call = getattr(self, "_" + self._pattern.replace("-", "_"))
        result: Tensor = call(ctx, tensor)
        return result

    def _join(self, ctx: Context) -> Any:
        dist: Any = importlib.import_module("torch.distributed")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: nothing needs to leave it
        store = dist.FileStore(self._store_path, -1)
        return dist.ProcessGroupGloo(store, ctx.rank, len(ctx.workers), _DEADLINE)

    def _into(self, tensor: Tensor) -> Tensor:
        """Memory for a result, where Gloo cannot leave it in place."""
        if self._result is None or self._result.shape != tensor.shape:
            self._result = tensor.clone()
        return self._result

    def _barrier(self, _: Context, tensor: Tensor) -> Tensor:
        self._group.barrier().wait()
        return tensor

    def _broadcast(self, _: Context, tensor: Tensor) -> Tensor:
        dist: Any = importlib.import_module("torch.distributed")
        options = dist.BroadcastOptions()
        options.rootRank = ROOT
        self._group.broadcast([tensor], options).wait()
        return tensor

    def _reduce(self, _: Context, tensor: Tensor) -> Tensor:
        dist: Any = importlib.import_module("torch.distributed")
        options = dist.ReduceOptions()
        options.rootRank = ROOT
        self._group.reduce([tensor], options).wait()
        return tensor

    def _all_gather(self, ctx: Context, tensor: Tensor) -> Tensor:
        self._group._allgather_base(tensor, collectives.own_chunk(ctx.net, tensor)).wait()
        return tensor

    def _reduce_scatter(self, ctx: Context, tensor: Tensor) -> Tensor:
        dist: Any = importlib.import_module("torch.distributed")
        result = self._into(tensor)
        own = collectives.own_chunk(ctx.net, result)
        self._group._reduce_scatter_base(own, tensor, dist.ReduceScatterOptions()).wait()
        return result

    def _all_to_all(self, _: Context, tensor: Tensor) -> Tensor:
        dist: Any = importlib.import_module("torch.distributed")
        result = self._into(tensor)
        self._group.alltoall_base(result, tensor, [], [], dist.AllToAllOptions()).wait()
        return result
