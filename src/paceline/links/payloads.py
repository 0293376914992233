"""The bytes of a tensor that a network carries."""

from __future__ import annotations

import ctypes

import torch

from paceline.links.receiving import RecvOperation
from paceline.replica.sums import combine_into

__all__ = ["combine_next", "memory_at"]

_memmove = ctypes.memmove
_char = ctypes.c_char


def combine_next(operation: RecvOperation, payload: memoryview, n: int) -> None:
    """Let the first `n` bytes of what has come be the next of the operation's message."""
    into = operation.into
    assert into is not None
    if operation.combine == "copy":
        _memmove(into.data_ptr() + operation.received, (_char * n).from_buffer(payload), n)
    elif n:
        item_bytes = into.element_size()
        start = operation.received // item_bytes
        part = into.view(-1)[start : start + n // item_bytes]
        combine_into(part, torch.frombuffer(payload, dtype=into.dtype, count=len(part)), operation.combine)
    operation.received += n


def memory_at(address: int, nbytes: int) -> memoryview:
    """As something that can be sent or received into. It does not keep the memory alive."""
    return memoryview((_char * nbytes).from_address(address)).cast("B")
