"""The baseline: Gloo by torch.distributed, in the same processes as Paceline's algorithms."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

from torch import Tensor

from paceline import collectives
from paceline.bench.patterns import ROOT
from paceline.collectives.patterns import own_chunk
from paceline.context import Context

_DEADLINE = timedelta(seconds=60)


class Gloo:
    """One rank's calls of Gloo for a pattern. The group and the result buffers are created outside of timed calls."""

    def __init__(self, pattern: str, store_path: str) -> None:
        self._pattern = pattern
        self._store_path = store_path
        self._group: Any = None
        self._result: Tensor | None = None

    async def run(self, ctx: Context, tensor: Tensor) -> Tensor:
        """Execute the pattern and return the tensor with the result."""
        if self._pattern == "all-reduce":
            await collectives.all_reduce(ctx, tensor, "native")
            return tensor
        if self._group is None:
            self._group = self._join(ctx)
        work, result = self._start(ctx, tensor)
        work.wait()
        return result

    def _join(self, ctx: Context) -> Any:
        dist: Any = importlib.import_module("torch.distributed")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on one host
        store = dist.FileStore(self._store_path, -1)
        return dist.ProcessGroupGloo(store, ctx.rank, len(ctx.workers), _DEADLINE)

    def _into(self, tensor: Tensor) -> Tensor:
        """Return a result buffer, for patterns that Gloo cannot execute in place."""
        if self._result is None or self._result.shape != tensor.shape:
            self._result = tensor.clone()
        return self._result

    def _start(self, ctx: Context, tensor: Tensor) -> tuple[Any, Tensor]:
        """Start the pattern. Return Gloo's handle, and the tensor that will hold the result."""
        dist: Any = importlib.import_module("torch.distributed")
        group, result = self._group, tensor
        match self._pattern:
            case "barrier":
                work = group.barrier()
            case "broadcast":
                work = group.broadcast([tensor], _rooted(dist.BroadcastOptions()))
            case "reduce":
                work = group.reduce([tensor], _rooted(dist.ReduceOptions()))
            case "all-gather":
                work = group._allgather_base(tensor, own_chunk(ctx.net, tensor))
            case "reduce-scatter":
                result = self._into(tensor)
                own = own_chunk(ctx.net, result)
                work = group._reduce_scatter_base(own, tensor, dist.ReduceScatterOptions())
            case _:
                result = self._into(tensor)
                work = group.alltoall_base(result, tensor, [], [], dist.AllToAllOptions())
        return work, result


def _rooted(options: Any) -> Any:
    options.rootRank = ROOT
    return options
