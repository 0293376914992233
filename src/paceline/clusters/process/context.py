"""Context of a rank in a real process. It blocks while it waits, and never suspends its program."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from paceline.clusters.base.job import Job
from paceline.clusters.base.news import Teller
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.process.awaited_work import LIMIT
from paceline.clusters.process.computing import ComputeOperation
from paceline.clusters.process.data import LoadedData, open_data
from paceline.clusters.process.driver import Driver
from paceline.clusters.process.gradient_duration import duration_of
from paceline.clusters.process.learner import ProcessLearner
from paceline.clusters.process.message_spans import MessageSpans
from paceline.clusters.process.native import NativeGroups
from paceline.clusters.process.net import ProcessNet
from paceline.clusters.process.operations import Background, FirstOperation, SleepOperation
from paceline.clusters.process.own_faults import OwnFaults
from paceline.clusters.process.preparing import prepare
from paceline.clusters.process.status_board import Status
from paceline.clusters.process.waits import Waits
from paceline.clusters.process.window import LocalWindow
from paceline.clusters.process.wiring import Wiring
from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.groups import Groups
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.row_board import RowBoard
from paceline.context import Handle
from paceline.costs.prices import Price
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.data.samples import Samples
from paceline.faults import Fault
from paceline.links import clock
from paceline.links.emulated import EmulatedPort
from paceline.links.operation import Activity, Operation
from paceline.links.port import Port
from paceline.model.devices import CPU
from paceline.model.portable import module_in_place
from paceline.model.replica import Replica
from paceline.system import stopping
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE

T = TypeVar("T")

PARAMETER_BOARD = "parameter-board"


class ProcessContext(Rank):
    """Context of a strategy in a process of its own."""

    in_background = False
    model: ProcessLearner
    net: ProcessNet

    def __init__(
        self,
        job: Job,
        rank: int,
        *,
        driver: Driver,
        wiring: Wiring,
        stragglers: Stragglers,
        compute: Times | None = None,
        deadline_s: float,
        store_path: str = "",
        device: torch.device = CPU,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(job, rank)
        self._teller = Teller(self.outcome) if job.can_lose(rank) else None
        self.deadline_s = deadline_s
        if job.task is not None and job.task.loaders and rank in self.workers:
            _ = self.data  # fork loaders before a model starts torch's threads
        hosts = wiring.hosts
        self.recorder.host = hosts[rank]
        self.driver = driver
        self.board = driver.board
        self.stragglers = stragglers
        self._emulates = compute is not None
        if self._emulates:
            clock.use(self.board.clock)
        self.duration = duration_of(rank, stragglers, compute, self.delay_rng, self.outcome)
        self._faults = OwnFaults(self, faults)
        self.native = NativeGroups(store_path, job.ranks, LIMIT * deadline_s)
        self.start_s = math.inf  # before the run's clock starts, `now` is minus infinity: no time passes
        self.wiring = wiring
        # A network moves messages while the processor computes.
        self.computes_in_thread = len(set(hosts)) > 1 or wiring.emulated is not None
        # Shared with a twin, so that a wait of either one advances both.
        self.port = self._open_port()
        self.port.device = device if device != CPU else None
        self.waits = self._new_waits()
        self.windows: dict[Any, LocalWindow] = {}
        self.groups = Groups(rank, hosts, driver.number_of)
        self.net = ProcessNet(self, self.groups.everybody)
        self.model = self._open_model(device)

    def _new_waits(self) -> Waits:
        # Within a host, a message is in shared memory before its sender ends.
        endpoint = self.wiring.endpoint if len(set(self.wiring.hosts)) > 1 else None
        return Waits(self.rank, self.board, self.deadline_s, endpoint)

    def _open_model(self, device: torch.device) -> ProcessLearner:
        job, replica = self.job, None
        if job.task is not None:
            module = module_in_place(job.task, job.seed)
            replica = Replica.of(
                job.task, module, seed=job.seed, rank=self.rank, autocast=job.autocast, device=device
            )
        return ProcessLearner(self, replica)

    def _open_port(self) -> Port:
        links, bells, spans = self.wiring.emulated, self.board.bells, MessageSpans(self)
        ends = (self.rank, self.job.ranks, self.wiring.ways, bells, spans.note_sent, spans.note_received)
        return Port(*ends) if links is None else EmulatedPort(*ends, links=links, shared=self.wiring.shared)

    @contextlib.contextmanager
    def clock_stopped(self) -> Iterator[None]:
        if not self._emulates:
            yield
            return
        self.board.clock.stop()
        try:
            yield
        finally:
            self.board.clock.go_on()

    def prepare(self) -> None:
        """Do work before the run that would otherwise take time in its first steps."""
        prepare(self, shares_evaluations=not self._emulates)

    def begin(self, start_s: float) -> None:
        self.start_s = start_s - self.resumed_s
        self.board.note_doing(self.rank, Activity.working)

    def now(self) -> float:
        return clock.now() - self.start_s

    async def meet_fault(self, fault: Fault) -> None:
        self._faults.meet(fault)

    # The run

    @cached_property
    def data(self) -> TrainingData:
        job, computes = self.job, self.rank in self.workers
        assert job.task is not None
        return open_data(job.task, job.seed, self.rank, job.workers, self.deadline_s, uses_loaders=computes)

    @cached_property
    def test_samples(self) -> Samples | None:
        return Samples.of_test(self.job.task) if self.job.task is not None else None

    @property
    def last_step(self) -> int:
        return self.board.last_step

    def end_after(self, step: int) -> None:
        self.driver.end_after(step)

    @property
    def announced_end(self) -> int:
        return self.board.announced_end(self.generation)

    def announce_end(self, word: int) -> None:
        self.driver.announce_end(self.generation, word)

    @property
    def stop_wanted(self) -> bool:
        return self.board.stop or stopping.wanted()

    def begin_generation(self, first: int) -> None:
        super().begin_generation(first)
        self.waits.begin_generation()

    def renew_net(self) -> None:
        number_of, hosts = self.driver.number_of, self.wiring.hosts
        groups = Groups(self.rank, hosts, number_of, generation=self.net_number, members=self.members)
        for each in cast(list[ProcessContext], [self, *self.twins]):
            each.groups = groups
            each.net = ProcessNet(each, groups.everybody)

    def announce(self, evaluation: int, metric: float) -> None:
        self.driver.announce(evaluation, metric)

    def announced(self, evaluation: int) -> float:
        return self.board.metric(evaluation)

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        return self.driver.consult(record, state)

    def is_lost(self, rank: int) -> bool:
        return self.board.status(rank) == Status.LOST

    def open_parameter_board(self) -> Observer:
        like = Observer.row(self.model.parameters)
        # Each generation of members has its own board. Other runs keep theirs.
        name = f"{PARAMETER_BOARD}-{self.generation}"
        return self._observer(self.driver.row_board(self, name, like, forgiving=not self.job.regroups))

    def open_row_board(self, name: str, like: Tensor) -> RowBoard:
        return self.driver.row_board(self, name, like)

    # Waiting

    def start(self, work: Awaitable[T]) -> Handle[T]:
        if not isinstance(work, Operation):
            assert inspect.iscoroutine(work), "start takes an operation or a coroutine"
            work = Background(self, cast(Coroutine[Any, None, T], work))
        self.waits.begin(work)
        return work

    def first(self, handles: Sequence[Handle[Any]]) -> FirstOperation:
        return FirstOperation(self, cast(Sequence[Operation[Any]], handles))

    def sleep(self, seconds: float) -> SleepOperation:
        return SleepOperation(self, seconds)

    def wait(self, operation: Operation[Any]) -> None:
        self.waits.until_done(operation, self.step)

    def wake(self) -> None:
        """Wake this rank. Called from one of its threads."""
        self.board.bells.ring(self.rank)

    @property
    def price(self) -> Price | None:
        return self.duration.price

    async def catch_up(self) -> None:
        """Do nothing: the clock was already set to that time."""

    def settle(self) -> None:
        self.waits.settle(self.step)
        if ComputeOperation._under_way is not None:
            ComputeOperation._under_way.result()  # it may be cancelled but not yet stopped

    def close(self) -> None:
        data = vars(self).get("data")
        if isinstance(data, LoadedData):
            data.loaders.close()
        super().close()

    def describe_links(self) -> list[str]:
        """Return the state of the links, to diagnose a stalled run."""
        return self.port.describe()

    def finish(self) -> Outcome:
        if "data" in vars(self):  # a server may never have used the data
            self.outcome.samples_per_epoch = self.data.samples_per_epoch
        return super().finish()

    # Records

    def note_holds(self, words: str) -> None:
        if words != self.outcome.holds:
            super().note_holds(words)
            self.driver.note_holds(words)

    def tell_news(self) -> None:
        if self._teller is not None:
            self.driver.tell_news(self._teller.take())

    def go_on_without(self, rank: int) -> None:
        self.waits.do_without(rank)
        if not self.is_lost(rank):  # late, not lost
            self.driver.give_up_on(rank)

    def span(
        self,
        kind: Kind,
        start_s: float,
        end_s: float,
        peer: int = -1,
        nbytes: int = 0,
        message: int = NO_MESSAGE,
    ) -> None:
        super().span(kind, start_s, end_s, peer, nbytes, message)
        if kind is Kind.COMPUTE or kind is Kind.CANCELLED:
            self.board.note_computing(self.rank, end_s - start_s, ended=kind is Kind.COMPUTE)

    def show_progress(self, record: dict[str, Any]) -> None:
        losses = self.outcome.losses
        loss = record.get("loss", losses[-1][1] if losses else float("nan"))
        metric = record["metric"] if record["metric"] is not None else float("nan")
        samples = self.samples_by(record)
        self.board.write_report(record["step"], loss, samples, record["seconds"], metric)
