"""A file in memory that one rank writes, and that its driver reads if the rank is lost.

It costs a rank one system call each time, and the driver nothing until then. A letter would wake the driver each time,
and would have to wait while a callback of the user's keeps it busy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from paceline.clusters.news import News, write_news

__all__ = ["Journal"]


class Journal:
    """The kernel keeps what was written, however the writer has ended."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, rank: int) -> Journal:
        return cls(os.memfd_create(f"paceline-journal-{rank}", os.MFD_CLOEXEC))

    def write(self, news: News) -> None:
        os.write(self.fd, write_news(news))

    def read(self) -> Iterator[bytes]:
        """Its lines, once its writer is gone: it moves the place at which either of them goes on."""
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(0)
            for line in file:
                if line.endswith(b"\n"):  # the last may have been cut off
                    yield line

    def close(self) -> None:
        os.close(self.fd)
