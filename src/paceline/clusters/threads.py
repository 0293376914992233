"""With how many threads torch computes: sums depend on it, and the process may be the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["computing_threads"]


@contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """Compute with so many; as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
