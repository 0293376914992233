"""What the driver hands to its own workers at launch: the task and everything in it, by cloudpickle, in one piece of
shared memory. The data of tensors stands beside the pickle and is mapped, not copied, by each worker."""

from __future__ import annotations

import io
import mmap
import pickle
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from paceline.links.memory import SharedMemory, aligned

__all__ = ["Packed", "load", "store"]

_ALIGNMENT = 64


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Puts the bytes of plain CPU tensors aside."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self.offsets: list[int] = []
        self.end = 0
        self._seen: dict[int, int] = {}

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and _is_plain(thing):
            return _rebuild, (self._put(thing), thing.dtype, tuple(thing.shape))
        return super().reducer_override(thing)

    def _put(self, tensor: Tensor) -> int:
        self.offsets.append(self.end)
        self.tensors.append(tensor.detach().contiguous())
        self.end = aligned(self.end + tensor.numel() * tensor.element_size(), _ALIGNMENT)
        return self.offsets[-1]


def _is_plain(tensor: Tensor) -> bool:
    """Small tensors, and those that are more than a block of numbers, are left to torch's own pickling."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_leaf
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.numel() * tensor.element_size() > 4096
        and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    )


_blocks: mmap.mmap | None = None


def _rebuild(offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    assert _blocks is not None
    count = 1
    for size in shape:
        count *= size
    return torch.frombuffer(_blocks, dtype=dtype, offset=offset, count=count).view(shape)


class Packed:
    """A value whose pickling is done: all that is the user's code has run."""

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        self._pickler = _Pickler(file)
        self._pickler.dump(value)
        self._pickled = file.getvalue()

    def store(self) -> SharedMemory:
        """Write the value to shared memory whose descriptor can be handed to workers."""
        pickler, pickled = self._pickler, self._pickled
        memory = SharedMemory.create("payload", pickler.end + len(pickled) + 8)
        for offset, tensor in zip(pickler.offsets, pickler.tensors, strict=True):
            memory.tensor(tensor.dtype, offset, tensor.numel()).copy_(tensor.reshape(-1))
        memory.view[pickler.end : pickler.end + len(pickled)] = pickled
        memory.view[-8:] = pickler.end.to_bytes(8, "little")
        return memory


def store(value: Any) -> SharedMemory:
    """Write a value to shared memory whose descriptor can be handed to workers."""
    return Packed(value).store()


def load(fd: int, nbytes: int) -> Any:
    """Rebuild the value. Its tensors are mapped copy-on-write: a worker that writes to one gets pages of its own."""
    global _blocks
    mapped = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    start = int.from_bytes(mapped[-8:], "little")
    _blocks = mapped
    try:
        return pickle.loads(memoryview(mapped)[start:-8])
    finally:
        _blocks = None
