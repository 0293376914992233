"""What a rank asks of a hub that may be on another host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.clusters.control import Control
from paceline.clusters.hosts.line import Line
from paceline.clusters.hosts.showcase import HubShowcase
from paceline.clusters.observer import Showcase
from paceline.links.memory import SharedMemory

if TYPE_CHECKING:
    from paceline.clusters.local_context import LocalContext

__all__ = ["HubHome"]


class HubHome:
    """The control words are this process's own copy, which the line keeps."""

    def __init__(self, rank: int, workers: int, control: Control, line: Line) -> None:
        self.control = control
        self.line = line
        self._showcase = HubShowcase(rank, workers, control, line) if rank < workers else None
        self._made: list[SharedMemory] = []

    def end_after(self, step: int) -> None:
        self.line.ask("end_after", {"step": step})

    def count_update(self) -> int:
        return int(self.line.ask("count").values["count"])

    def give_up_on(self, rank: int) -> None:
        self.line.tell("lost", {"rank": rank})

    def memory(self, name: str, nbytes: int) -> SharedMemory:
        path = self.line.ask("memory", {"name": name}).values["path"]
        if not path:
            memory = SharedMemory.create(name, nbytes)
            self._made.append(memory)  # the others open it by this process's descriptor
            self.line.tell("made", {"name": name, "path": f"/proc/{os.getpid()}/fd/{memory.fd}"})
            return memory
        memory = SharedMemory.attach(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        memory.close_fd()
        return memory

    def showcase(self, context: LocalContext, like: Tensor) -> Showcase:
        assert self._showcase is not None, "who only serves has nothing to show"
        self._showcase.open(context, like)
        return self._showcase
