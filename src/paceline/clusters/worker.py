"""The life of a local worker process, from its fork to its last letter home."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.clusters import payload
from paceline.clusters.channel import Channel, encode
from paceline.clusters.control import Control
from paceline.clusters.failures import failure_of
from paceline.clusters.job import Job, Outcome
from paceline.clusters.local_context import LocalContext
from paceline.costs.link import Link
from paceline.costs.stragglers import Stragglers
from paceline.errors import Cancelled, RunError
from paceline.links.memory import SharedMemory

__all__ = ["Assignment", "main"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Everything that is the same for all workers of a run."""

    job: Job
    stragglers: Stragglers
    link: Link | None
    """To be emulated. None: shared memory as it is."""
    deadline_s: float
    threads: int
    store_path: str
    """A file that all ranks can open, for torch.distributed to meet at."""


def main(channel: Channel) -> None:
    """Do what the first letter says, and write home how it went."""
    letter = channel.receive()
    rank = letter.values["rank"]
    context: LocalContext | None = None
    try:
        _settle_in(letter.values)
        context = _prepare(channel, rank, letter.values["payload_bytes"], letter.fds)
        channel.send("ready")
        context.begin(channel.receive().values["start_s"])
        result = drive(context.job.program(rank)(context))
        context.settle()
        outcome = context.finish()
        outcome.result = result
        _send_outcome(channel, outcome)
    except (Exception, SystemExit, Cancelled) as error:
        _send_error(channel, rank, context.step if context else 0, error)


def drive(program: Awaitable[Any]) -> Any:
    """Run a program whose awaits never suspend: no event loop, one `send`."""
    try:
        program.__await__().send(None)
    except StopIteration as stop:
        return stop.value
    raise RunError("a role program awaited something that is not of its context; use ctx.… operations only")


def _prepare(channel: Channel, rank: int, payload_bytes: int, fds: list[int]) -> LocalContext:
    assignment_fd, control_fd, rings_fd = fds
    assignment: Assignment = payload.load(assignment_fd, payload_bytes)
    job = assignment.job
    torch.set_num_threads(assignment.threads)
    random.seed(job.seed * 1_000_003 + rank)
    np.random.seed((job.seed * 1_000_003 + rank) % 2**32)
    torch.manual_seed(job.seed)
    control = Control(SharedMemory.attach(control_fd), job.ranks)
    context = LocalContext(
        job,
        rank,
        channel=channel,
        control=control,
        rings=SharedMemory.attach(rings_fd),
        stragglers=assignment.stragglers,
        link=assignment.link,
        deadline_s=assignment.deadline_s,
        store_path=assignment.store_path,
    )
    for fd in (assignment_fd, rings_fd):  # the control's is for its lock
        os.close(fd)
    return context


def _settle_in(values: dict[str, Any]) -> None:
    """Be where the driver is: unpickling the task may import modules from its folder."""
    sys.path[:] = values["path"]
    os.environ.update(values["environment"])
    os.chdir(values["folder"])


def _send_outcome(channel: Channel, outcome: Outcome) -> None:
    blobs: list[Any] = []
    assert outcome.spans is not None
    values = {
        "rank": outcome.rank,
        "records": outcome.records,
        "updates": outcome.updates,
        "metric": outcome.metric,
        "reported": outcome.reported,
        "own_metric": outcome.own_metric,
        "losses": outcome.losses,
        "bytes_at": outcome.bytes_at,
        "bytes_sent": outcome.bytes_sent,
        "messages_sent": outcome.messages_sent,
        "bytes_over_time": outcome.bytes_over_time,
        "staleness": outcome.staleness,
        "lost": outcome.lost,
        "seconds": outcome.seconds,
        "state": outcome.state,
        "result": outcome.result,
    }
    body = encode(values, blobs)
    channel.send("done", {"body": body}, [*blobs, outcome.spans.to_bytes()])


def _send_error(channel: Channel, rank: int, step: int, error: BaseException) -> None:
    failure = failure_of(rank, step, error)
    channel.send("error", {"type": type(failure).__name__, "args": _jsonable(failure.args), "step": step})


def _jsonable(args: tuple[Any, ...]) -> list[Any]:
    return [a if isinstance(a, (int, float, str, list, type(None))) else str(a) for a in args]
