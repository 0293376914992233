"""The life of a local worker process, from its fork to its last letter to the driver."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.clusters.job import Job
from paceline.clusters.local.heap import keep_freed_memory
from paceline.clusters.process import dump, payload
from paceline.clusters.process.channel import Channel, ChannelClosed
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.driver import LocalDriver
from paceline.clusters.process.letters import write_error, write_outcome
from paceline.clusters.process.wiring import (
    TcpNetwork,
    open_status_board,
    over_emulated,
    over_memory,
    over_tcp,
)
from paceline.clusters.rank.keeper import prepare
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import Cancelled, RunError
from paceline.links import fuzz
from paceline.links.lending import Lending
from paceline.links.memory import SharedMemory
from paceline.links.tcp import Seat, TcpEndpoint
from paceline.replica.devices import device_of

__all__ = ["Assignment", "drive", "main", "seed_chance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Everything that is the same for all workers of a run."""

    job: Job
    stragglers: Stragglers
    compute: Times | None
    """What a gradient is to take. None: what it takes."""
    link: Link | None
    """To be emulated. None: shared memory as it is, or TCP."""
    network: TcpNetwork | None
    """None: no TCP."""
    deadline_s: float
    threads: int
    device: str
    """Of all ranks, as a word."""
    store_path: str = ""
    """A file that all ranks can open, for torch.distributed to meet at."""


def main(channel: Channel) -> None:
    """Do what the first letter says, and write to the driver how it went."""
    letter = channel.receive()
    rank = letter.values["rank"]
    context: ProcessContext | None = None
    try:
        _settle_in(letter.values)
        fuzz.begin(rank)
        context = _prepare(channel, rank, letter.values["payload_bytes"], letter.fds)
        prepare(context)
        dump.begin(context)
        context.prepare()
        endpoint = context.wiring.endpoint
        channel.send("ready", _seat_of(endpoint))
        go = channel.receive().values
        if endpoint:
            endpoint.meet([Seat(address, key.encode()) for address, key in go["seats"]])
        context.begin(go["start_s"])
        result = drive(context.live())
        outcome = context.finish()
        outcome.result = result
        _flush()
        channel.send("done", *write_outcome(outcome))
        if endpoint:
            with contextlib.suppress(ChannelClosed):
                channel.receive()  # until the run is over: what this rank has said may still be on its way
            endpoint.close()
    except (Exception, SystemExit, Cancelled) as error:
        _flush()
        channel.send("error", write_error(rank, context.step if context else 0, error))


def seed_chance(seed: int, rank: int) -> None:
    """Seed what a user's code may draw from: torch alike on all ranks, for the model; Python and numpy by rank."""
    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % 2**32)
    torch.manual_seed(seed)


def drive(program: Awaitable[Any]) -> Any:
    """Run a program whose awaits never suspend: no event loop, one `send`."""
    try:
        program.__await__().send(None)
    except StopIteration as stop:
        return stop.value
    raise RunError("a role program awaited something that is not of its context; use ctx.… operations only")


def _prepare(channel: Channel, rank: int, payload_bytes: int, fds: list[int]) -> ProcessContext:
    assignment_fd, board_fd, rings_fd = fds
    assignment: Assignment = payload.load(assignment_fd, payload_bytes)
    job = assignment.job
    torch.set_num_threads(assignment.threads)
    keep_freed_memory()
    seed_chance(job.seed, rank)
    rings = SharedMemory.attach(rings_fd)
    board = open_status_board(SharedMemory.attach(board_fd), job.ranks, assignment.network)
    driver = LocalDriver(board, channel)
    if assignment.network is not None:
        wiring = over_tcp(assignment.network, rank, board)
    elif assignment.link is not None:
        wiring = over_emulated(rank, job.ranks, rings, board.bells, assignment.link)
    else:
        wiring = over_memory(rank, job.ranks, rings, board.bells, Lending(rank, driver.memory))
    context = ProcessContext(
        job,
        rank,
        driver=driver,
        wiring=wiring,
        stragglers=assignment.stragglers,
        compute=assignment.compute,
        deadline_s=assignment.deadline_s,
        store_path=assignment.store_path,
        device=device_of(assignment.device, rank),
    )
    for fd in (assignment_fd, rings_fd):  # the board's stays open: it is needed for the lock
        os.close(fd)
    return context


def _seat_of(endpoint: TcpEndpoint | None) -> dict[str, Any]:
    """For the driver, who tells the others."""
    if endpoint is None:
        return {}
    return {"seat": [endpoint.seat.address, endpoint.seat.public_key.decode()]}


def _flush() -> None:
    """Write out what the user's code has printed. After its last letter a worker may be killed at any moment."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it
            stream.flush()


def _settle_in(values: dict[str, Any]) -> None:
    """Be where the driver is: unpickling the task may import modules from its folder."""
    sys.path[:] = values["path"]
    os.environ.update(values["environment"])
    os.chdir(values["folder"])
