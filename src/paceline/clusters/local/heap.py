"""How a worker's process asks the system for memory.

Every step frees and needs again what the last one had: activations, gradients, temporaries. Memory that goes back to
the system is cleared and mapped anew, page by page, each time; a step of a small transformer lost 2 to 4 % to that.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Of glibc's <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 * 2**20
_KEPT_BYTES = 64 * 2**20


def keep_freed_memory() -> None:
    """Let the process keep freed blocks of up to 32 MiB, and 64 MiB of them at the heap's end.

    These are the bounds that glibc comes to by itself, once a process has freed a block of 32 MiB. Other libraries have
    ways of their own, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
