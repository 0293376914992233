"""Main function of a local worker process, from its fork to its last message to the driver."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import random
import signal
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from paceline.clusters.base.job import Job
from paceline.clusters.base.silence import patience_s
from paceline.clusters.local.preloading import adopt_environment
from paceline.clusters.process import payload
from paceline.clusters.process.channel import Channel, ChannelClosed, Letter
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.driver import LocalDriver, NewGeneration
from paceline.clusters.process.letters import write_error, write_outcome
from paceline.clusters.process.regrouping import RegroupingProcess
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.wiring import (
    TcpNetwork,
    Wiring,
    open_status_board,
    over_emulated,
    over_memory,
    over_tcp,
)
from paceline.clusters.rank.checkpoint_writer import prepare
from paceline.costs.fabric import Fabric
from paceline.costs.slow_links import SlowLinks
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import Cancelled, RunError
from paceline.faults import Cut, Fault
from paceline.links import fuzz
from paceline.links.memory.lending import Lending
from paceline.links.memory.shared import SharedMemory
from paceline.links.shared_links import shared_links
from paceline.links.tcp import PeerAddress, TcpEndpoint
from paceline.links.tcp.cuts import LinkCut, LinkCuts
from paceline.model.devices import device_of

# From glibc's <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 32 * 2**20
_KEPT_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Settings that are the same for all workers of a run."""

    job: Job
    stragglers: Stragglers
    compute: Times | None
    """Drawn time of a gradient. None to use the real time."""
    fabric: Fabric | None
    """Emulated hosts and links. None for real shared memory or TCP."""
    slow_links: SlowLinks
    """Pairs of ranks with another emulated link."""
    network: TcpNetwork | None
    """TCP settings. None if TCP is not used."""
    deadline_s: float
    threads: int
    device: str
    """Device name, the same for all ranks."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject."""
    restart: bool = False
    """Whether a lost rank gets a new process, which joins the run."""
    store_path: str = ""
    """File that all ranks can open, used as the store of torch.distributed."""


def main(channel: Channel) -> None:
    """Execute the launch message, and send the outcome or the error to the driver."""
    letter = channel.receive()
    rank = letter.values["rank"]
    context: ProcessContext | None = None
    try:
        _settle_in(letter.values)
        fuzz.begin(rank)
        context = _prepare(channel, letter)
        prepare(context)
        _dump_on_signal(context)
        context.prepare()
        endpoint = context.wiring.endpoint
        channel.send("ready", _address_of(endpoint))
        go = channel.receive().values
        if endpoint and "addresses" in go:  # a rank that joins gets them with its first generation
            # A rank that was lost before it opened its socket has no address.
            endpoint.meet([PeerAddress.from_values(each) if each else None for each in go["addresses"]])
        context.begin(go["start_s"])
        if endpoint and letter.values["joins"]:
            endpoint.cuts.forget_begun()
        result = drive(context.live())
        outcome = context.finish()
        outcome.result = result
        _flush()
        channel.send("done", *write_outcome(outcome))
        if endpoint:
            with contextlib.suppress(ChannelClosed):
                channel.receive()  # until the run is over: messages of this rank may still be in flight
            endpoint.close()
    except (Exception, SystemExit, Cancelled) as error:
        _flush()
        channel.send("error", write_error(rank, context.step if context else 0, error))


def seed_generators(seed: int, rank: int) -> None:
    """Seed the generators of user code: torch equally on all ranks, for the model; Python and numpy by rank."""
    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % 2**32)
    torch.manual_seed(seed)


def drive(program: Awaitable[Any]) -> Any:
    """Run a program that never suspends: no event loop, one `send`."""
    try:
        program.__await__().send(None)
    except StopIteration as stop:
        return stop.value
    raise RunError(
        "a role program awaited an operation that is not from its context; use only ctx.… operations"
    )


def _prepare(channel: Channel, letter: Letter) -> ProcessContext:
    assignment_fd, board_fd, rings_fd = letter.fds
    rank, joins = letter.values["rank"], letter.values["joins"]
    assignment: Assignment = payload.load(assignment_fd, letter.values["payload_bytes"])
    job = assignment.job
    torch.set_num_threads(assignment.threads)
    keep_freed_memory()
    seed_generators(job.seed, rank)
    rings = SharedMemory.attach(rings_fd)
    board = open_status_board(SharedMemory.attach(board_fd), job.ranks, assignment.network)
    driver = LocalDriver(board, channel)
    lending = Lending(rank, driver.memory)

    def wire(rings: SharedMemory) -> Wiring:
        if assignment.network is not None:
            return over_tcp(assignment.network, rank, board)
        if assignment.fabric is not None:
            return _emulated(assignment, assignment.fabric, rank, rings, board)
        return over_memory(rank, job.ranks, rings, board.bells, lending)

    wiring = wire(rings)
    settings: dict[str, Any] = {
        "driver": driver,
        "wiring": wiring,
        "stragglers": assignment.stragglers,
        "compute": assignment.compute,
        "deadline_s": assignment.deadline_s,
        "store_path": assignment.store_path,
        "device": device_of(assignment.device, rank),
        "faults": _faults_of(assignment, rank, joins=joins),
    }
    context: ProcessContext
    if not job.regroups:
        context = ProcessContext(job, rank, **settings)
    else:

        def wire_anew(begins: NewGeneration) -> Wiring:
            if wiring.endpoint is None:
                return wire(begins.rings)
            wiring.endpoint.meet(begins.addresses, generation=begins.membership.generation)
            return wiring

        def reload() -> Job:
            loaded: Assignment = payload.load(assignment_fd, letter.values["payload_bytes"])
            return loaded.job

        context = RegroupingProcess(job, rank, wire=wire_anew, reload=reload, **settings)
        context.joins = joins
    if wiring.endpoint is not None:
        wiring.endpoint.cuts = LinkCuts(_cuts_of(assignment, rank), context.now)
    # The board's descriptor stays open for its lock. The descriptor of the rings stays open too, if emulated cards
    # are in their memory.
    if not wiring.shared:
        os.close(rings_fd)
    if not job.returns_to_checkpoint:  # the model may be loaded again
        os.close(assignment_fd)
    return context


def _faults_of(assignment: Assignment, rank: int, *, joins: bool) -> list[Fault]:
    """Return the faults of a rank. Faults in steps have hit its first process."""
    faults = [fault for fault in assignment.faults if fault.rank == rank]
    return [fault for fault in faults if fault.step is None] if joins else faults


def _cuts_of(assignment: Assignment, rank: int) -> list[LinkCut]:
    """Return when this rank sends nothing to others. The driver ends ranks that are cut off for too long."""
    found, limit_s = [], patience_s(assignment.deadline_s)
    for cut in (fault for fault in assignment.faults if isinstance(fault, Cut)):
        is_lost = cut.seconds_s > limit_s
        if rank in cut.side:  # it must not send once more before it is ended
            others = set(range(assignment.job.ranks)) - set(cut.side)
            found.append(LinkCut(cut.at_s, math.inf if is_lost else cut.at_s + cut.seconds_s, others))
        else:  # it may send to another process that takes the rank
            found.append(LinkCut(cut.at_s, cut.at_s + min(cut.seconds_s, limit_s), cut.side))
    return found


def _emulated(
    assignment: Assignment, fabric: Fabric, rank: int, rings: SharedMemory, board: StatusBoard
) -> Wiring:
    job = assignment.job
    hosts = fabric.place(job.ranks, job.workers)
    links = [
        assignment.slow_links.get((min(rank, other), max(rank, other)), fabric.link_of(hosts[rank], host))
        for other, host in enumerate(hosts)
    ]
    return over_emulated(rank, rings, board.bells, links, hosts, shared_links(fabric, hosts, rings))


def _address_of(endpoint: TcpEndpoint | None) -> dict[str, Any]:
    """Return the address of this rank for the driver, which sends it to the other ranks."""
    return {} if endpoint is None else {"address": endpoint.address.to_values()}


def _flush() -> None:
    """Flush the output of the user's code.

    After its last message to the driver, a worker may be killed at any time.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed
            stream.flush()


def _settle_in(values: dict[str, Any]) -> None:
    """Use the driver's folder, path and environment, because unpickling the task may import modules from there."""
    sys.path[:] = values["path"]
    adopt_environment(values["environment"])
    os.chdir(values["folder"])


def keep_freed_memory() -> None:
    """Keep freed blocks of up to 32 MiB in the process, and up to 64 MiB at the end of the heap.

    Every step frees and allocates the same memory again: activations, gradients, temporaries. Without these limits,
    the system would clear and map this memory again, page by page. This takes 2 to 4 % of a step of a small
    transformer. glibc sets these limits automatically when a process first frees a block of 32 MiB. Other C libraries
    are left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _dump_on_signal(context: ProcessContext) -> None:
    """Install the handler of SIGUSR1 if `PACELINE_DUMP=folder` is set, to diagnose a stalled run.

    It writes the rank's stacks, its operations in flight, and the state of its links to a file in that folder.
    """
    folder = os.environ.get("PACELINE_DUMP", "")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder, f"rank-{context.rank}-{os.getpid()}.txt").open("a")  # noqa: SIM115 (for the rank's life)
    signal.signal(signal.SIGUSR1, lambda *_: _write_state(context, file))
    # faulthandler writes the stacks inside the signal handler, even if the interpreter cannot run the Python
    # handler above.
    faulthandler.register(signal.SIGUSR1, file=file, chain=True)


def _write_state(context: ProcessContext, file: TextIO) -> None:
    lines = [f"rank {context.rank} in step {context.step}: {context.board.activity(context.rank)}"]
    lines += [f"under way: {operation}" for operation in context.waits.under_way]
    lines += context.describe_links()
    file.write("\n".join(lines) + "\n")
    file.flush()
