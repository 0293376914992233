"""How the driver hears from rank 0 while a program runs: a pipe, and a thread that sleeps at its other end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["heard"]


@contextmanager
def heard(on_byte: Callable[[int], None] | None) -> Iterator[str | None]:
    """A path that a worker can open and write to. `on_byte` is called with the number of each byte, from 0."""
    if on_byte is None:
        yield None
        return
    read_fd, write_fd = os.pipe()
    thread = threading.Thread(target=_listen, args=(read_fd, on_byte), name="bench-progress", daemon=True)
    thread.start()
    try:
        yield f"/proc/{os.getpid()}/fd/{write_fd}"
    finally:
        os.close(write_fd)  # the last writer: the workers are gone by now, so the thread sees the end
        thread.join()
        os.close(read_fd)


def _listen(read_fd: int, on_byte: Callable[[int], None]) -> None:
    count = 0
    while data := os.read(read_fd, 64):
        for _ in data:
            on_byte(count)
            count += 1
