"""Requests of local ranks to their driver: memory by name, a journal for each rank, and group numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from paceline.clusters.process.channel import Letter
from paceline.clusters.process.context import PARAMETER_BOARD
from paceline.clusters.process.journal import Journal
from paceline.clusters.rank.groups import GroupNumbers
from paceline.links.memory.shared import SharedMemory

REQUESTS = ("window", "journal", "group")
"""Words of the messages that are requests. The answer has the same word."""


class Requests:
    """Objects that have been requested so far. Equal requests return the same object."""

    def __init__(self) -> None:
        self._windows: dict[str, SharedMemory] = {}
        self._journals: dict[int, Journal] = {}
        self._groups = GroupNumbers()

    def answer(self, rank: int, letter: Letter) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the values and the descriptors of the answer."""
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

    def drop_boards(self) -> None:
        """Close the boards of members that have begun a new generation. They open others."""
        for name in [name for name in self._windows if name.startswith(PARAMETER_BOARD)]:
            self._windows.pop(name).close_fd()

    def told_by(self, rank: int) -> Iterator[bytes]:
        """Yield the journal of a process that has ended, line by line, and close it."""
        journal = self._journals.pop(rank, None)
        if journal is not None:
            with contextlib.closing(journal):
                yield from journal.read()

    def close(self) -> None:
        """Close all descriptors, even if one fails to close, and drop all objects.

        The traceback of an error may keep this object alive, and each mapping keeps a descriptor open.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._windows.clear)
            for window in self._windows.values():
                stack.callback(window.close_fd)
            for journal in self._journals.values():
                stack.callback(journal.close)
