"""Context of a simulated rank: the same programs on a virtual clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.groups import Groups
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.slow_ranks import slowest
from paceline.clusters.simulated.data import SharedData
from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.learner import SimulatedLearner
from paceline.clusters.simulated.net import SimulatedGroupNet, SimulatedNet
from paceline.clusters.simulated.process import AnyOf, Event, Process
from paceline.clusters.simulated.window import SimulatedWindow
from paceline.clusters.simulated.world import World
from paceline.context import Handle
from paceline.data.samples import Samples
from paceline.model.replica import Replica
from paceline.runs.run import Progress, Record
from paceline.system import stopping
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, message_id, pack_span

T = TypeVar("T")

_PROGRESS_S = 0.1


class SimulatedContext(Rank):
    """Context of a strategy in virtual time."""

    __slots__ = (
        "blank",
        "blank_landing",
        "blank_nbytes",
        "blank_received",
        "box",
        "groups",
        "kernel",
        "network",
        "next_message",
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
        """The program in the foreground."""
        self.box = world.network.boxes[rank]
        self.recorder.host = world.hosts[rank]
        self.record_packed = self.recorder.packed.append
        self.next_message = itertools.count(message_id(rank, 0)).__next__
        """Returns the id of the next message that this rank sends. Shared with its twins."""
        # Ranks without mathematics send and receive the same few tensors many times. Reading the size or shape of a
        # tensor takes as long as the rest of a message.
        self.blank: Tensor | None = None
        """Tensor without data that was sent last."""
        self.blank_nbytes = 0
        self.blank_received: Tensor | None = None
        """Tensor without data that was received last, if its shape matched the tensor that it was received into."""
        self.blank_landing: Tensor | None = None
        self.price = world.pricing.of_rank(rank, world.stragglers, self.delay_rng)
        """Cost of this rank's computations."""
        self.groups = Groups(rank, world.hosts, world.groups.number_of)
        self.net = SimulatedNet(self, self.groups.everybody)
        self.model = SimulatedLearner(self, replica)

    def now(self) -> float:
        return self.kernel.now

    # The run

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
    def generation_end(self) -> int:
        # Read several times in each step, so a call is saved if there is only one generation.
        return super().generation_end if self._has_generations else self.world.last_step

    @property
    def announced_end(self) -> int:
        return self.world.announced_ends.get(self.generation, 0)

    def announce_end(self, word: int) -> None:
        self.world.announced_ends[self.generation] = word

    @property
    def stop_wanted(self) -> bool:
        return stopping.wanted()

    def settle(self) -> None:
        """Do nothing: virtual time completes all operations."""

    async def catch_up(self) -> None:
        if self.resumed_s:
            await Timer(self, self.resumed_s)

    def renew_net(self) -> None:
        number_of, hosts = self.world.groups.number_of, self.world.hosts
        groups = Groups(self.rank, hosts, number_of, generation=self.net_number, members=self.members)
        for each in cast(list[SimulatedContext], [self, *self.twins]):
            each.groups = groups
            each.net = SimulatedGroupNet(each, groups.everybody)

    def announce(self, evaluation: int, metric: float) -> None:
        self.world.announced[evaluation] = metric

    def announced(self, evaluation: int) -> float:
        return self.world.announced[evaluation]

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
        return self._observer(world.parameter_board.seen_by(self))

    def is_lost(self, rank: int) -> bool:
        """Return False: without faults no rank is ever lost."""
        return False

    def go_on_without(self, rank: int) -> None:
        """Do nothing: there is no state to remove."""

    def begin_program(self) -> Process[Any]:
        self.program = self.new_process(self.live(), f"rank {self.rank} ({self.role})")
        self.world.programs.append(self.program)
        return self.program

    @property
    def result(self) -> Any:
        """Result of the program."""
        return None if self.program is None else self.program.result

    def has_raised(self, error: BaseException) -> bool:
        """Return whether an error is from this rank."""
        return self.program is not None and self.program.error is error

    # Waiting

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
        self.record_packed(pack_span(kind, start_s, now_s, -1, 0, self.step, NO_MESSAGE))
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
        slow = slowest(world.computing_s, world.computations)
        present = sum(not self.is_lost(rank) for rank in range(self.job.workers))
        world.progress(Progress(*so_far, record["metric"], *slow, workers=present))
