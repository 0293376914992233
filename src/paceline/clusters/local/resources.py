"""What the workers of a local run share with the driver: the payload, mapped memory, and the fork server."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from paceline.clusters.local.forkserver import ForkServer
from paceline.clusters.local.preloading import IDENTITY, TRACER, installed_modules
from paceline.clusters.local.worker import Assignment
from paceline.clusters.process.payload import NOT_SENT, Packed
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.wiring import open_status_board
from paceline.links.memory.bells import SocketBells
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import SharedMemory
from paceline.links.shared_links import nbytes_of
from paceline.system import interrupts
from paceline.system.user_code import user_code


class Resources:
    """Resources of one run. `stack` frees them."""

    def __init__(self, assignment: Assignment, stack: contextlib.ExitStack) -> None:
        # An error's traceback may hold this object, and each mapping holds a descriptor.
        stack.callback(vars(self).clear)
        job, network = assignment.job, assignment.network
        store_fd = os.memfd_create("paceline-store", os.MFD_CLOEXEC)
        stack.callback(os.close, store_fd)
        assignment = dataclasses.replace(assignment, store_path=f"/proc/{os.getpid()}/fd/{store_fd}")
        with user_code(NOT_SENT), interrupts.unprotected():
            packed = Packed(assignment)
        packed.say_what_is_copied()
        self.payload = packed.store()
        stack.callback(self.payload.close_fd)
        self.memory = SharedMemory.create("board", StatusBoard.nbytes(job.ranks))
        stack.callback(self.memory.close_fd)
        self.rings_nbytes = RingWays.nbytes(job.ranks) + nbytes_of(assignment.fabric)
        self.rings = SharedMemory.create("rings", self.rings_nbytes)
        stack.callback(self.rings.close_fd)
        self.board = open_status_board(self.memory, job.ranks, network)
        if isinstance(self.board.bells, SocketBells):
            stack.callback(self.board.bells.close)
        modules = installed_modules(packed.pickled)
        if job.declared.cuts_model:
            modules.append(TRACER)
        if network is not None and network.encrypt:
            modules.append(IDENTITY)
        self.server = ForkServer.get_with(modules)
