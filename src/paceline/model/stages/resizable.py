"""A flat tensor with storage that can be freed and allocated again.

The tensor remains the same object. Tensors that autograd saved (a transposed weight, for example) are valid again after
the next allocation.
"""

from __future__ import annotations

from torch import Tensor


class ResizableBuffer:
    """A flat tensor, allocated or freed."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        self._nbytes = flat.untyped_storage().nbytes()

    @property
    def is_allocated(self) -> bool:
        return self.flat.is_meta or not self._nbytes or self.flat.untyped_storage().nbytes() > 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated now."""
        return self._nbytes if self.is_allocated else 0

    def allocate(self) -> Tensor:
        """Allocate the storage again. Its content is undefined."""
        if not self.is_allocated:
            self.flat.untyped_storage().resize_(self._nbytes)
        return self.flat

    def free(self) -> None:
        storage = self.flat.untyped_storage()
        # Storage that user code shares with numpy cannot be resized, so it remains allocated.
        if not self.flat.is_meta and storage.resizable():
            storage.resize_(0)
