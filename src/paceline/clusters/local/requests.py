"""What ranks of this machine ask of their driver: memory by name, a journal each, and numbers of groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from paceline.clusters.process.channel import Letter
from paceline.clusters.process.journal import Journal
from paceline.clusters.rank.groups import GroupNumbers
from paceline.links.memory import SharedMemory

__all__ = ["REQUESTS", "Requests"]

REQUESTS = ("window", "journal", "group")
"""The words of letters that are requests. The answer is a letter of the same word."""


class Requests:
    """What has been asked for so far: whoever asks for the same gets the same."""

    def __init__(self) -> None:
        self._windows: dict[str, SharedMemory] = {}
        self._journals: dict[int, Journal] = {}
        self._groups = GroupNumbers()

    def answer(self, rank: int, letter: Letter) -> tuple[dict[str, Any] | None, list[int]]:
        """The values and the descriptors of the answer."""
        if letter.word == "group":
            return {"number": self._groups.number_of(tuple(letter.values["members"]))}, []
        if letter.word == "journal":
            self._journals[rank] = Journal.create(rank)
            return None, [self._journals[rank].fd]
        return None, [self._window(**letter.values).fd]

    def _window(self, name: str, nbytes: int) -> SharedMemory:
        if name not in self._windows:
            self._windows[name] = SharedMemory.create(name, nbytes)
        return self._windows[name]

    def told_by(self, rank: int) -> Iterator[bytes]:
        """What a rank that is gone has written into its journal, line by line."""
        if rank in self._journals:
            yield from self._journals[rank].read()

    def close(self) -> None:
        """Close the descriptors, all of them even if one cannot be, and drop what was made.

        An error's traceback may keep this object, and each mapping holds a descriptor, too.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._windows.clear)
            for window in self._windows.values():
                stack.callback(window.close_fd)
            for journal in self._journals.values():
                stack.callback(journal.close)
