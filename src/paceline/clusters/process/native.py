"""All-reduce by torch.distributed: NCCL for tensors on CUDA devices, Gloo for all others.

The NCCL path is untested: no such device was available.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from paceline.model.devices import host_copy, synchronize


class NativeGroups:
    """Process groups among ranks of one host. Each is created on first use."""

    def __init__(self, store_path: str, ranks: int, deadline_s: float) -> None:
        self._store_path = store_path
        self._ranks = ranks
        self._deadline = timedelta(seconds=deadline_s)
        self._groups: dict[tuple[bool, tuple[int, ...]], Any] = {}

    def all_reduce(self, tensor: Tensor, rank: int, group: Sequence[int], op: str) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        options = dist.AllreduceOptions()
        options.reduceOp = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}.get(op, dist.ReduceOp.SUM)
        by_nccl = _goes_by_nccl(dist, tensor, len(group))
        data = tensor if by_nccl or tensor.is_cpu else host_copy(tensor)
        self._group(rank, tuple(group), by_nccl).allreduce([data], options).wait()
        if data is not tensor:
            tensor.copy_(data)
        synchronize(tensor.device)

    def _group(self, rank: int, group: tuple[int, ...], by_nccl: bool) -> Any:
        key = (by_nccl, group)
        if key not in self._groups:
            self._groups[key] = self._join(rank, group, by_nccl)
        return self._groups[key]

    def _join(self, rank: int, group: tuple[int, ...], by_nccl: bool) -> Any:
        dist: Any = importlib.import_module("torch.distributed")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: use the loopback interface
        store: Any = dist.FileStore(self._store_path, -1)
        words = "-".join(map(str, group))
        if by_nccl:
            prefix = dist.PrefixStore(f"nccl-{words}", store)
            return dist.ProcessGroupNCCL(prefix, group.index(rank), len(group), self._deadline)
        prefix = dist.PrefixStore(words, store)
        return dist.ProcessGroupGloo(prefix, group.index(rank), len(group), self._deadline)


def _goes_by_nccl(dist: Any, tensor: Tensor, ranks: int) -> bool:
    """Return whether NCCL is used. It needs one device for each rank."""
    return tensor.is_cuda and dist.is_nccl_available() and torch.accelerator.device_count() >= ranks
