"""Number of compute threads of torch. Floating-point sums depend on it, and the process may belong to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads in this block, then restore the previous number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
