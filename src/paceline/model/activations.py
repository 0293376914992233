"""Activation bytes: tensors that a forward pass stores for its backward pass. Counted once for each batch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Activations:
    """Memory of some tensors. Each storage counts once. Of a large storage, only the viewed parts count."""

    def __init__(self, besides: Iterable[Tensor] = ()) -> None:
        """`besides` are tensors that do not count, such as parameters."""
        self._besides = {storage_of(tensor): tensor for tensor in besides}
        self._views: dict[int, set[tuple[Any, ...]]] = {}
        self._found: dict[int, Tensor] = {}  # references, so that no other storage gets the same address

    def note(self, values: Any) -> None:
        """Count the tensors in `values`."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor):
                self._note(leaf.detach())

    def _note(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        key = storage_of(tensor)
        if key not in self._besides:
            self._found[key] = tensor
            view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
            self._views.setdefault(key, set()).add(view)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the tensors that autograd saves within the context."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        kept = tensor.detach()
        self._note(kept)
        return kept, kept._version

    @property
    def nbytes(self) -> int:
        """Bytes counted. If only views of a storage are used, the views count: a batch may be a slice of all data."""
        return sum(
            min(self._found[key].untyped_storage().nbytes(), sum(map(_view_bytes, views)))
            for key, views in self._views.items()
        )

    def has(self, tensor: Tensor) -> bool:
        """Return whether all memory of a tensor is already counted, or belongs to `besides`."""
        key = storage_of(tensor)
        return tensor.is_contiguous() and (key in self._besides or key in self._found)

    def clear(self) -> int:
        """Return the bytes, and drop the references to the counted tensors."""
        nbytes = self.nbytes
        self._found.clear()
        self._views.clear()
        return nbytes


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of these tensors. A storage that several of them share counts once."""
    counted = Activations()
    for tensor in tensors:
        counted.note(tensor)
    return counted.nbytes


def refuses_counting(error: RuntimeError) -> bool:
    """Return whether a computation failed because it was counted: functions of torch.func do not support saved-tensor
    hooks.
    """
    return "saved tensor" in str(error)


def state_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def _unpack(packed: tuple[Tensor, int]) -> Tensor:
    tensor, version = packed
    if tensor._version != version:  # autograd skips this check for tensors saved with hooks
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )
    return tensor


def storage_of(tensor: Tensor) -> int:
    # On the meta device every data pointer is 0. The pointer to the storage object is unique.
    return int(tensor.untyped_storage()._cdata)


def _view_bytes(view: tuple[Any, ...]) -> int:
    _, shape, _, dtype = view
    return int(shape.numel()) * int(dtype.itemsize)
