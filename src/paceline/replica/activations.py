"""What a forward pass leaves for its backward pass, in bytes: counted while the pass is done, once for each size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = ["Activations", "bytes_of", "refuses_counting", "state_of"]


class Activations:
    """The memory of some tensors: each storage once, and of a large one only the parts that are meant."""

    def __init__(self, besides: Iterable[Tensor] = ()) -> None:
        """`besides`: what is there anyway, such as parameters. Its storages do not count."""
        self._besides = {_storage_of(tensor): tensor for tensor in besides}
        self._views: dict[int, set[tuple[Any, ...]]] = {}
        self._found: dict[int, Tensor] = {}  # kept alive, or another may get the same address

    def note(self, values: Any) -> None:
        """Count the tensors in some values, too."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor):
                self._note(leaf.detach())

    def _note(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        key = _storage_of(tensor)
        if key not in self._besides:
            self._found[key] = tensor
            view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            self._views.setdefault(key, set()).add(view)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what autograd keeps of what is computed meanwhile."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        kept = tensor.detach()
        self._note(kept)
        return kept, kept._version

    @property
    def nbytes(self) -> int:
        """A storage of which only a part is kept by a view counts by that part: a batch may be a slice of all data."""
        return sum(
            min(self._found[key].untyped_storage().nbytes(), sum(map(_view_bytes, views)))
            for key, views in self._views.items()
        )

    def has(self, tensor: Tensor) -> bool:
        """Whether all of a tensor's memory is among what is counted, or there anyway."""
        key = _storage_of(tensor)
        return tensor.is_contiguous() and (key in self._besides or key in self._found)

    def let_go(self) -> int:
        """The bytes; what was counted is not kept alive any more."""
        nbytes = self.nbytes
        self._found.clear()
        self._views.clear()
        return nbytes


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """What these tensors take together, each storage once."""
    counted = Activations()
    for tensor in tensors:
        counted.note(tensor)
    return counted.nbytes


def refuses_counting(error: RuntimeError) -> bool:
    """Whether a computation failed because it was counted: functions of torch.func refuse to be."""
    return "saved tensor" in str(error)


def state_of(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def _unpack(packed: tuple[Tensor, int]) -> Tensor:
    tensor, version = packed
    if tensor._version != version:  # with hooks autograd does not look itself
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )
    return tensor


def _storage_of(tensor: Tensor) -> int:
    # Of tensors without data every pointer to data is 0; that to the storage itself is not.
    return int(tensor.untyped_storage()._cdata)


def _view_bytes(view: tuple[Any, ...]) -> int:
    _, shape, _, dtype = view
    return int(shape.numel()) * int(dtype.itemsize)
