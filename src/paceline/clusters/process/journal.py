"""In-memory file that one rank writes, and that its driver reads if the rank is lost.

Each write is one system call of the rank and no work for the driver. A message would wake the driver each time, and
would wait while the driver runs a user callback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from paceline.clusters.base.news import News, write_news


class Journal:
    """Journal of one rank. The kernel keeps its content even if the writer is killed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, rank: int) -> Journal:
        return cls(os.memfd_create(f"paceline-journal-{rank}", os.MFD_CLOEXEC))

    def write(self, news: News) -> None:
        os.write(self.fd, write_news(news))

    def read(self) -> Iterator[bytes]:
        """Yield the lines. Call it only when the writer has ended, because both share the file position."""
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(0)
            for line in file:
                if line.endswith(b"\n"):  # the last line may be incomplete
                    yield line

    def close(self) -> None:
        os.close(self.fd)
