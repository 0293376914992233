"""A rank of the simulated world: the same programs, on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from paceline.clusters.job import Job
from paceline.clusters.rank.node import Node
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.pace import slowest
from paceline.clusters.simulated.events import ComputeEvent, Timer
from paceline.clusters.simulated.kernel import AnyOf, Event, Kernel, Process
from paceline.clusters.simulated.messages import RecvEvent, SendEvent
from paceline.clusters.simulated.network import Network
from paceline.clusters.simulated.whole_collective import PartEvent, WholeCollective, suits
from paceline.clusters.simulated.window import SimulatedWindow, View
from paceline.context import BUCKET_BYTES, Batch, Combine, Handle
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError
from paceline.interpreter import interpret
from paceline.replica.batches import GlobalBatches, Samples
from paceline.replica.replica import Replica
from paceline.run import Progress
from paceline.schedules.collective import Collective
from paceline.trace import Kind
from paceline.trace.spans import pack_span

__all__ = ["SimulatedContext", "World"]

T = TypeVar("T")

_FORWARD_SHARE = 1 / 3  # of a gradient's time: backward multiplies twice where forward does once
_PROGRESS_S = 0.1
_DRAWS = 32
_UPDATE = int(Kind.UPDATE)


@dataclass(slots=True, kw_only=True)
class World:
    """What the simulated ranks have in common."""

    kernel: Kernel
    network: Network
    hosts: tuple[int, ...]
    compute: Times
    """Seconds of one gradient."""
    update_s: float
    stragglers: Stragglers
    training_samples: Samples | None
    samples: Samples | None
    """Those to compute with: none where no mathematics is done."""
    test_samples: Samples | None
    global_batches: GlobalBatches | None
    batches: dict[int, Batch] = field(default_factory=dict)
    """Of each worker: the last that somebody asked for. Its server asks for the same one."""
    last_step: int
    updates: int = 0
    """Updates that ranks made at their own pace."""
    progress: Callable[[Progress], None] | None = None
    shown_s: float = 0.0
    computing_s: list[float] = field(default_factory=list)
    """Of each rank: seconds spent on computations, while there is somebody to show progress to."""
    computations: list[int] = field(default_factory=list)
    """Of each rank: how many it has ended."""
    whole_collectives: bool = True
    """Whether collectives of many ranks are timed as a whole."""
    whole_collectives_under_way: dict[int, WholeCollective] = field(default_factory=dict)
    windows: dict[tuple[str, tuple[int, ...]], SimulatedWindow] = field(default_factory=dict)
    parameter_board: SimulatedWindow | None = None


class SimulatedContext(Node):
    """What a strategy sees in virtual time."""

    __slots__ = (
        "blank",
        "blank_landing",
        "blank_nbytes",
        "blank_received",
        "box",
        "draw_compute_s",
        "hosts",
        "kernel",
        "network",
        "program",
        "record_packed",
        "test_samples",
        "world",
    )

    windows_are_fast = False
    test_samples: Samples | None

    def __init__(self, world: World, job: Job, rank: int, replica: Replica | None) -> None:
        super().__init__(job, rank, replica)
        self.world = world
        self.kernel = world.kernel
        self.network = world.network
        self.hosts: Sequence[int] = world.hosts
        self.test_samples = world.test_samples
        self.program: Process[Any] | None = None
        """What runs in the foreground."""
        self.box = world.network.boxes[rank]
        self.recorder.host = world.hosts[rank]
        self.record_packed = self.recorder.packed.append
        # Ranks without mathematics send and receive the same few tensors again and again. Asking a tensor for its size
        # or its shape takes as long as a whole message otherwise does.
        self.blank: Tensor | None = None
        """The tensor without data that was last sent."""
        self.blank_nbytes = 0
        self.blank_received: Tensor | None = None
        """The tensor without data that was last received, and which fitted the one it was received into."""
        self.blank_landing: Tensor | None = None
        self.draw_compute_s = _draw_compute_times(world, rank, self.delay_rng).__next__
        """How long this rank's next gradient takes."""

    def now(self) -> float:
        return self.kernel.now

    # What is learned

    @property
    def training_samples(self) -> Samples:
        assert self.world.training_samples is not None
        return self.world.training_samples

    @property
    def global_batches(self) -> GlobalBatches:
        assert self.world.global_batches is not None
        return self.world.global_batches

    @property
    def last_step(self) -> int:
        return self.world.last_step

    def batch_of(self, worker: int, step: int) -> Batch:
        kept = self.world.batches
        batch = kept.get(worker)
        if batch is None or batch.step != step:
            batch = kept[worker] = self.global_batches.slice(step, worker, len(self.workers))
        return batch

    def end_after(self, step: int) -> None:
        self.world.last_step = min(self.world.last_step, step + 1)

    def count_update(self) -> int:
        self.world.updates += 1
        return self.world.updates

    def open_parameter_board(self) -> Observer:
        world = self.world
        if world.parameter_board is None:
            like = Observer.row(self.parameters)
            world.parameter_board = SimulatedWindow(self.kernel, self.workers, len(self.workers), like)
        return Observer(world.parameter_board.seen_by(self), self.rank, self.workers, lambda _rank: False)

    def compute(self, batch: Batch) -> ComputeEvent:
        return ComputeEvent(self, batch)

    async def gradients(self, batch: Batch, *, bucket_bytes: int = BUCKET_BYTES) -> AsyncIterator[Tensor]:
        self.replica.set_bucket_bytes(bucket_bytes)
        computation = ComputeEvent(self, batch)
        self.start(computation)
        start_s, ready = self.now(), _FORWARD_SHARE
        for number, share in zip(self.replica.bucket_order(), self.replica.bucket_shares(), strict=True):
            ready += share * (1 - _FORWARD_SHARE)
            wait_s = start_s + ready * computation.seconds - self.now()
            if number and wait_s > 0:
                await Timer(self, wait_s)
            elif not number:
                await computation
            yield self.replica.bucket(number)

    async def apply(
        self, shard: slice | None = None, *, norm: float | None = None, advance: bool = True
    ) -> None:
        start_s = self.kernel.now
        self.replica.apply(shard, norm, advance=advance)
        if self.world.update_s:
            await Timer(self, self.world.update_s)
        self.record_packed(pack_span(_UPDATE, start_s, self.kernel.now, -1, 0, self.step))

    # How ranks talk

    def send(
        self, to: int, tensor: Tensor, *, tag: int = 0, version: int = 0, note: float = 0.0
    ) -> SendEvent:
        return SendEvent(self, to, tensor, tag, version, note)

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> RecvEvent:
        return RecvEvent(self, source, into, combine, tag)

    def lend(self, *, parameters: bool = False, gradient: bool = False) -> None:
        """Messages are copied when they are sent, and nothing is gained by lending here."""

    async def detach(self, sending: Handle[None]) -> None:
        """Its tensor may be overwritten: it was copied when it was sent."""

    def start(self, work: Awaitable[T]) -> Handle[T]:
        if isinstance(work, Event):
            if not work.started:
                work.started = True
                work.start()
            return work
        process: Process[T] = Process(self.kernel, cast(Any, work), parent=self.program)
        self.kernel.unskippable += 1
        process.resume()
        self.kernel.unskippable -= 1
        return process

    async def first(self, handles: Sequence[Handle[Any]]) -> Handle[Any]:
        events = cast(Sequence[Event[Any]], handles)
        while True:
            for event in events:
                if event.done:
                    return event
            await AnyOf(self.kernel, events)

    async def sleep(self, seconds: float) -> None:
        start_s = self.now()
        await Timer(self, seconds)
        self.span(Kind.SLEEP, start_s, self.now())

    def window(self, name: str, group: Sequence[int], *, rows: int, like: Tensor) -> View:
        if len({self.hosts[rank] for rank in group}) > 1:
            raise ConfigurationError(
                "window", "needs ranks of one host", name, "use hosts=1 or pass messages"
            )
        key = (name, tuple(group))
        if key not in self.world.windows:
            self.world.windows[key] = SimulatedWindow(self.kernel, group, rows, like)
        return self.world.windows[key].seen_by(self)

    def execute(
        self, collective: Collective, group: Sequence[int], data: Tensor, *, combine: Combine, tag: int
    ) -> Awaitable[None]:
        world = self.world
        if not world.whole_collectives or not suits(collective):
            return interpret(self, collective, group, data, combine=combine, tag=tag)
        meeting = world.whole_collectives_under_way.get(tag)
        if meeting is None:
            meeting = world.whole_collectives_under_way[tag] = WholeCollective(collective, group)
        meeting.announced += 1
        if meeting.announced == len(group):
            del world.whole_collectives_under_way[tag]  # the tag may come again
        return PartEvent(self, meeting, data, combine)

    async def native_all_reduce(self, tensor: Tensor, group: Sequence[int], op: str) -> None:
        raise ConfigurationError(
            "algorithm",
            "must not be native in a simulation",
            "native",
            "torch.distributed keeps no virtual time",
        )

    def note_computing(self, kind: int, start_s: float) -> None:
        now_s, world = self.kernel.now, self.world
        self.record_packed(pack_span(kind, start_s, now_s, -1, 0, self.step))
        if world.progress is not None:
            world.computing_s[self.rank] += now_s - start_s
            world.computations[self.rank] += kind == Kind.COMPUTE

    def show_progress(self, record: dict[str, Any]) -> None:
        world = self.world
        if world.progress is None or time.monotonic() - world.shown_s < _PROGRESS_S:
            return
        world.shown_s = time.monotonic()
        losses = self.outcome.losses
        loss = record.get("loss", losses[-1][1] if losses else float("nan"))
        so_far = (record["step"], world.last_step, loss, self.samples_by(record), record["seconds"])
        world.progress(Progress(*so_far, record["metric"], *slowest(world.computing_s, world.computations)))


def _draw_compute_times(world: World, rank: int, rng: np.random.Generator) -> Iterator[float]:
    compute, factor, delay = world.compute, world.stragglers.factor(rank), world.stragglers.delay_of(rank)
    if delay is not None:
        while True:
            yield compute.draw(rng) * factor + delay.draw(rng)
    while True:  # many at a time are the same numbers, and cost as much as a few one by one
        yield from (compute.sample(rng, _DRAWS) * factor).tolist()
