"""A rank of the simulated world: the same programs, on a virtual clock."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from torch import Tensor

from paceline.clusters import stopping
from paceline.clusters.job import Consult, Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.rank.counter import UpdateCounter
from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.groups import GroupNumbers, Groups
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.pace import slowest
from paceline.clusters.rank.rank import Rank
from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.group_run import GroupRun
from paceline.clusters.simulated.kernel import AnyOf, Event, Kernel, Process
from paceline.clusters.simulated.learner import SimulatedLearner
from paceline.clusters.simulated.net import SimulatedGroupNet, SimulatedNet
from paceline.clusters.simulated.network import Network
from paceline.clusters.simulated.pass_timer import PassTimer
from paceline.clusters.simulated.run_plan import RunPlan
from paceline.clusters.simulated.whole_collective import WholeCollective
from paceline.clusters.simulated.window import SimulatedWindow
from paceline.context import Batch, Handle
from paceline.costs.link import Link
from paceline.costs.prices import Pricing
from paceline.costs.stragglers import Stragglers
from paceline.replica.batches import GlobalBatches
from paceline.replica.pieces.cutting import Layers
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples
from paceline.run import Progress, Record
from paceline.trace import Kind
from paceline.trace.spans import pack_span

__all__ = ["SharedData", "SimulatedContext", "World"]

T = TypeVar("T")

_PROGRESS_S = 0.1


@dataclass(slots=True, kw_only=True)
class World:
    """What the simulated ranks have in common."""

    kernel: Kernel
    network: Network
    hosts: tuple[int, ...]
    memory: Link
    """What the reads and barriers of a window cost."""
    shares_memory: bool
    """Whether ranks talk through the memory of one host."""
    pricing: Pricing
    """What computations cost."""
    stragglers: Stragglers
    data: SharedData | None
    samples: Samples | None
    """Those to compute with: none where no mathematics is done."""
    test_samples: Samples | None
    last_step: int
    updates: UpdateCounter = field(default_factory=UpdateCounter)
    """Those that ranks made at their own pace."""
    said: dict[int, int] = field(default_factory=dict)
    """By the number of a leg: what the reporter has said of its end."""
    progress: Callable[[Progress], None] | None = None
    consult: Consult | None = None
    callback_error: Exception | None = None
    """What a callback raised: it is not a rank's."""
    announced: float = math.nan
    """The reporter's last metric, where ranks need to know it."""
    shown_s: float = 0.0
    computing_s: list[float] = field(default_factory=list)
    """Of each rank: seconds spent on computations, while there is somebody to show progress to."""
    computations: list[int] = field(default_factory=list)
    """Of each rank: how many it has ended."""
    whole_collectives: bool = True
    """Whether collectives of many ranks are timed as a whole."""
    under_way: dict[int, WholeCollective] = field(default_factory=dict)
    """By tag: collectives that are timed as a whole, and that some of their ranks have not begun yet."""
    whole_runs: bool = True
    """Whether a tensor group's passes and sums in a stage are timed as a whole."""
    runs: dict[int, GroupRun] = field(default_factory=dict)
    """By tag: those that some of their ranks have not begun yet."""
    plans: dict[Hashable, RunPlan] = field(default_factory=dict)
    """Of runs, found once for all groups."""
    windows: dict[tuple[str, int], SimulatedWindow] = field(default_factory=dict)
    groups: GroupNumbers = field(default_factory=GroupNumbers)
    parameter_board: SimulatedWindow | None = None
    pass_timer: PassTimer | None = None
    """What passes through segments take on this machine, where that is what they cost."""
    layers: dict[tuple[int, bool], Layers] = field(default_factory=dict)
    """The parts of the model, where it is cut, by the size of a tensor group and whether it parts sequences: found once
    for all ranks."""


class SharedData(TrainingData):
    """One for all ranks. A server asks for the same batch as the worker that pushed it: such a batch is cut once."""

    def __init__(self, samples: Samples, batches: GlobalBatches, workers: int, turns: int = 1) -> None:
        super().__init__(samples, batches, workers, turns)
        self._last: dict[int, Batch] = {}

    def batch_of(self, worker: int, step: int) -> Batch:
        batch = self._last.get(worker)
        if batch is None or batch.step != step:
            batch = self._last[worker] = super().batch_of(worker, step)
        return batch


class SimulatedContext(Rank):
    """What a strategy sees in virtual time."""

    __slots__ = (
        "blank",
        "blank_landing",
        "blank_nbytes",
        "blank_received",
        "box",
        "groups",
        "kernel",
        "network",
        "price",
        "program",
        "record_packed",
        "test_samples",
        "world",
    )

    model: SimulatedLearner
    net: SimulatedNet
    test_samples: Samples | None

    def __init__(self, world: World, job: Job, rank: int, replica: Replica | None) -> None:
        super().__init__(job, rank)
        self.world = world
        self.kernel = world.kernel
        self.network = world.network
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
        self.price = world.pricing.of_rank(rank, world.stragglers, self.delay_rng)
        """What this rank's computations cost."""
        self.groups = Groups(rank, world.hosts, world.groups.number_of)
        self.net = SimulatedNet(self, self.groups.everybody)
        self.model = SimulatedLearner(self, replica)

    def now(self) -> float:
        return self.kernel.now

    # What the run is

    @property
    def data(self) -> SharedData:
        assert self.world.data is not None
        return self.world.data

    @property
    def last_step(self) -> int:
        return self.world.last_step

    def finish(self) -> Outcome:
        if self.world.data is not None:
            self.outcome.samples_per_epoch = self.world.data.samples_per_epoch
        return super().finish()

    def end_after(self, step: int) -> None:
        self.world.last_step = min(self.world.last_step, step + 1)

    @property
    def leg_end(self) -> int:
        # Asked several times a step: this spares a call where there are no legs.
        return super().leg_end if self._in_legs else self.world.last_step

    @property
    def said(self) -> int:
        return self.world.said.get(self.leg, 0)

    def say(self, word: int) -> None:
        self.world.said[self.leg] = word

    @property
    def stop_wanted(self) -> bool:
        return stopping.wanted()

    def settle(self) -> None:
        """Virtual time needs no help with that."""

    async def catch_up(self) -> None:
        if self.resumed_s:
            await Timer(self, self.resumed_s)

    def begin_leg(self, first: int) -> None:
        super().begin_leg(first)
        groups = Groups(self.rank, self.world.hosts, self.world.groups.number_of, leg=self.leg)
        for each in cast(list[SimulatedContext], [self, *self.twins]):
            each.groups = groups
            each.net = SimulatedGroupNet(each, groups.everybody)

    def announce(self, metric: float) -> None:
        self.world.announced = metric

    @property
    def announced(self) -> float:
        return self.world.announced

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        world = self.world
        assert world.consult is not None
        try:
            return world.consult(Record(**record), state)
        except Exception as error:
            world.callback_error = error
            raise

    def open_parameter_board(self) -> Observer:
        world = self.world
        if world.parameter_board is None:
            like = Observer.row(self.model.parameters)
            world.parameter_board = SimulatedWindow(self.kernel, self.workers, len(self.workers), like)
        return Observer(world.parameter_board.seen_by(self), self.rank, self.workers, self.is_lost)

    def is_lost(self, rank: int) -> bool:
        """Without faults no rank is ever lost."""
        return False

    def go_on_without(self, rank: int) -> None:
        """Nothing is kept for it."""

    # How this rank waits

    def start(self, work: Awaitable[T]) -> Handle[T]:
        if isinstance(work, Event):
            if not work.started:
                work.started = True
                work.start()
            return work
        process: Process[T] = self.new_process(cast(Any, work))
        self.kernel.unskippable += 1
        process.resume()
        self.kernel.unskippable -= 1
        return process

    def new_process(self, coroutine: Coroutine[Any, None, T], name: str = "") -> Process[T]:
        return Process(self.kernel, coroutine, name, self.program)

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
