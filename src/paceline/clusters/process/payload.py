"""Launch payload: the task with all its objects, pickled by cloudpickle into one block of shared memory. The bytes of
tensors and arrays are stored beside the pickle. Each worker maps them without a copy. Arrays mapped from a file are not
stored: each worker maps the file."""

from __future__ import annotations

import io
import logging
import mmap
import pickle
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from paceline.clusters.process.mapped_files import FilePart, Mappings, map_part
from paceline.costs.units import format_bytes
from paceline.links.memory.shared import SharedMemory, aligned

NOT_SENT = (
    "the task cannot be sent to worker processes; a model that cannot be pickled, such as a parametrized one, "
    "must be given as a factory: Task(model=lambda: …)"
)
"""Error message for a task that cannot be pickled."""

_log = logging.getLogger("paceline")

_ALIGNMENT = 64
_SMALL = 4096
"""Buffers up to this number of bytes stay in the pickle."""
_LARGE = 2**20
"""Buffers from this number of bytes on are looked up among the mapped files."""
_SAID = 256 * 2**20
"""Copies from this number of bytes on are reported to the user."""
_TRAILER = struct.Struct("<QQ")  # offsets of the pickle and of the list of places

Place: TypeAlias = tuple[int, int] | FilePart
"""Location of a buffer's bytes: offset and length in the shared memory, or a file range."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that stores the bytes of plain tensors, arrays and similar objects separately."""

    def __init__(self, file: io.BytesIO, *, files: bool) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._put_aside)
        self._mappings = Mappings() if files else None
        self.places: list[Place] = []
        self.aside: list[tuple[int, memoryview]] = []
        self.end = 0

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and _is_plain(thing):
            flat: Any = thing.detach().view(-1).view(torch.uint8).numpy()
            return _rebuild_tensor, (pickle.PickleBuffer(flat), thing.dtype, tuple(thing.shape))
        if type(thing) in (np.memmap, np.ndarray) and not thing.dtype.hasobject and thing.nbytes >= _LARGE:
            return self._reduce_array(thing)
        return super().reducer_override(thing)

    def _reduce_array(self, array: np.ndarray) -> Any:
        low, high = np.lib.array_utils.byte_bounds(array)
        part = self._mappings.find(low, high - low) if self._mappings is not None else None
        if part is not None:
            begin = array.__array_interface__["data"][0] - low
            mode = getattr(array, "mode", None)
            return _rebuild_mapped, (part, begin, array.dtype, array.shape, array.strides, mode)
        if type(array) is np.memmap:  # the mapped file is not accessible to other processes
            return _as_it_is, (np.asarray(array),)
        return NotImplemented

    def _put_aside(self, buffer: pickle.PickleBuffer) -> bool:
        """Handle one buffer. Return whether its bytes stay in the pickle."""
        raw = buffer.raw()
        if raw.nbytes <= _SMALL:
            return True
        if self._mappings is not None and raw.nbytes >= _LARGE:
            part = self._mappings.find(np.frombuffer(raw, np.uint8).ctypes.data, raw.nbytes)
            if part is not None:
                self.places.append(part)
                return False
        self.places.append((self.end, raw.nbytes))
        self.aside.append((self.end, raw))
        self.end = aligned(self.end + raw.nbytes, _ALIGNMENT)
        return False


def _is_plain(tensor: Tensor) -> bool:
    """Return whether to store a tensor separately. Small or special tensors use torch's own pickling."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_leaf
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.numel() * tensor.element_size() > _SMALL
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _rebuild_tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def _rebuild_mapped(
    part: FilePart,
    begin: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    mode: str | None,
) -> np.ndarray:
    """Return an array mapped from the file. It is a numpy.memmap if `mode` is given."""
    buffer = map_part(part)
    kind = np.ndarray if mode is None else np.memmap
    array = np.ndarray.__new__(kind, shape, dtype, buffer, begin, strides)
    if mode is not None:
        attributes: Any = array
        attributes._mmap, attributes.filename = buffer.obj, part.path
        attributes.offset, attributes.mode = part.offset + begin, mode
        array.flags.writeable = mode != "r"
    return array


def _as_it_is(thing: Any) -> Any:
    return thing


class Packed:
    """A pickled value. All user code in its pickling has run."""

    def __init__(self, value: Any, *, files: bool = True) -> None:
        """Pickle a value. `files` is True if the loading processes can read this host's files."""
        file = io.BytesIO()
        self._pickler = _Pickler(file, files=files)
        self._pickler.dump(value)
        self.pickled = file.getbuffer()

    def say_what_is_copied(self) -> None:
        """Warn the user about large copies."""
        _say_what_is_copied(self._pickler.end, len(self.pickled))

    def store(self) -> SharedMemory:
        """Write the value to shared memory. Its descriptor can be passed to workers."""
        pickler, places = self._pickler, pickle.dumps(self._pickler.places)
        second = pickler.end + len(self.pickled)
        memory = SharedMemory.create("payload", second + len(places) + _TRAILER.size)
        for offset, raw in pickler.aside:
            memory.view[offset : offset + raw.nbytes] = raw
        memory.view[pickler.end : second] = self.pickled
        memory.view[second : second + len(places)] = places
        memory.view[-_TRAILER.size :] = _TRAILER.pack(pickler.end, second)
        return memory


@cache
def _say_what_is_copied(shared_bytes: int, own_bytes: int) -> None:
    """Warn once for each size: a comparison sends the same task many times."""
    if shared_bytes < _SAID and own_bytes < _SAID:
        return
    _log.warning(
        "the task holds %s of tensors and arrays, copied once for all workers of a host, and %s of other objects, "
        "copied for every worker; what is mapped from a file (numpy.load(path, mmap_mode='r')) or made by a factory "
        "(data=lambda: …) is not copied",
        format_bytes(shared_bytes),
        format_bytes(own_bytes),
    )


def store(value: Any, *, files: bool = True) -> SharedMemory:
    """Write a value to shared memory. Its descriptor can be passed to workers."""
    return Packed(value, files=files).store()


def load(fd: int, nbytes: int) -> Any:
    """Rebuild the value. Its tensors are mapped copy-on-write: a worker that writes to one gets its own pages."""
    mapped = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    first, second = _TRAILER.unpack(mapped[-_TRAILER.size :])
    view = memoryview(mapped)
    places = pickle.loads(view[second : -_TRAILER.size])
    return pickle.loads(view[first:second], buffers=_buffers(view, places))


def _buffers(view: memoryview, places: list[Place]) -> Iterator[memoryview]:
    for place in places:
        yield map_part(place) if isinstance(place, FilePart) else view[place[0] : sum(place)]
