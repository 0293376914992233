"""A rank of the local world: a process that blocks while it waits, and never suspends its program."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar, cast

from torch import Tensor

from paceline.clusters.job import Job
from paceline.clusters.process.driver import Driver
from paceline.clusters.process.native import NativeGroups
from paceline.clusters.process.operations import (
    Background,
    BucketOperation,
    ComputeOperation,
    FirstOperation,
    SleepOperation,
)
from paceline.clusters.process.status_board import Status
from paceline.clusters.process.waits import Waits
from paceline.clusters.process.window import LocalWindow
from paceline.clusters.process.wiring import Wiring
from paceline.clusters.rank.node import Node
from paceline.clusters.rank.observer import Observer
from paceline.context import BUCKET_BYTES, Batch, Combine, Handle
from paceline.costs.stragglers import Stragglers
from paceline.errors import ConfigurationError
from paceline.interpreter import interpret
from paceline.links.emulated import EmulatedPort
from paceline.links.operation import Operation
from paceline.links.port import Port
from paceline.links.transfers import DetachOperation, RecvOperation, SendOperation
from paceline.replica.batches import GlobalBatches, Samples
from paceline.replica.replica import Replica
from paceline.schedules.collective import Collective
from paceline.trace import Kind

__all__ = ["LocalContext"]

T = TypeVar("T")

_NEGLIGIBLE_S = 2e-6  # shorter waits are not recorded


class LocalContext(Node):
    """What a strategy sees in a local worker process."""

    in_background = False

    def __init__(
        self,
        job: Job,
        rank: int,
        *,
        driver: Driver,
        wiring: Wiring,
        stragglers: Stragglers,
        deadline_s: float,
        store_path: str = "",
    ) -> None:
        replica = (
            Replica(job.task, job.task.build_model(job.seed), seed=job.seed, rank=rank) if job.task else None
        )
        super().__init__(job, rank, replica)
        self.hosts = wiring.hosts
        self.windows_are_fast = len(set(self.hosts)) == 1
        self.recorder.host = self.hosts[rank]
        self.driver = driver
        self.board = board = driver.board
        self.stragglers = stragglers
        self._native = NativeGroups(store_path, job.ranks, deadline_s)
        self._start_s = time.monotonic()
        self.wiring = wiring
        # A network moves messages while the processor computes.
        self.computes_in_thread = len(set(self.hosts)) > 1
        self._port = self._open_port()
        # Shared with a twin, so that either lets both go on.
        self.waits = Waits(rank, board, deadline_s, wiring.endpoint)
        self._windows: dict[Any, LocalWindow] = {}

    def _open_port(self) -> Port:
        link, bells = self.wiring.emulated, self.board.bells
        ends = (self.rank, self.job.ranks, self.wiring.ways, bells, self._note_sent, self._note_received)
        if link is None:
            return Port(*ends)
        return EmulatedPort(*ends, latency_s=link.latency_s, seconds_per_byte=link.seconds_per_byte)

    def begin(self, start_s: float) -> None:
        self._start_s = start_s

    def now(self) -> float:
        return time.monotonic() - self._start_s

    # What is learned

    @cached_property
    def samples(self) -> Samples:
        assert self.job.task is not None
        return Samples(self.job.task.build_data())

    @property
    def training_samples(self) -> Samples:
        return self.samples

    @cached_property
    def test_samples(self) -> Samples | None:
        task = self.job.task
        test = task.build_test() if task is not None else None
        return Samples(test) if test is not None else None

    @cached_property
    def global_batches(self) -> GlobalBatches:
        assert self.job.task is not None
        return GlobalBatches(self.samples.length, self.job.task.batch_size, self.job.seed)

    @property
    def last_step(self) -> int:
        return self.board.last_step

    def end_after(self, step: int) -> None:
        self.driver.end_after(step)

    def count_update(self) -> int:
        self.outcome.counted = self.driver.count_update()
        return self.outcome.counted

    def is_lost(self, rank: int) -> bool:
        return self.board.status(rank) == Status.LOST

    def open_parameter_board(self) -> Observer:
        parameter_board = self.driver.parameter_board(self, Observer.row(self.parameters))
        return Observer(parameter_board, self.rank, self.workers, self.is_lost)

    def twin(self) -> Self:
        other = super().twin()
        other.in_background = other.computes_in_thread = True
        return other

    def compute(self, batch: Batch) -> ComputeOperation:
        computation = ComputeOperation(self, batch)
        if self.computes_in_thread:
            computation.poll()
        return computation

    async def gradients(self, batch: Batch, *, bucket_bytes: int = BUCKET_BYTES) -> AsyncIterator[Tensor]:
        self.replica.set_bucket_bytes(bucket_bytes)
        computation = self.compute(batch)
        order = self.replica.bucket_order()
        if len(order) > 1:
            self.start(computation)  # in a thread, so that backward goes on while the buckets travel
            for number in order:
                await BucketOperation(computation, number)
                yield self.replica.bucket(number)
            await computation
        else:
            await computation
            yield self.replica.bucket(0)

    async def apply(
        self, shard: slice | None = None, *, norm: float | None = None, advance: bool = True
    ) -> None:
        start_s = self.now()
        self.replica.apply(shard, norm, advance=advance)
        self.span(Kind.UPDATE, start_s, self.now())

    # How ranks talk

    def send(
        self, to: int, tensor: Tensor, *, tag: int = 0, version: int = 0, note: float = 0.0
    ) -> SendOperation:
        return self._port.send(self, to, tensor, tag, version, note)

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> RecvOperation:
        return self._port.recv(self, source, into, combine, tag)

    def lend(self, *, parameters: bool = False, gradient: bool = False) -> None:
        lending = self.wiring.lending
        if lending is not None and self.parameters.is_cpu:
            self.place(
                parameters=lending.copy(self.parameters) if parameters else None,
                gradient=lending.copy(self.gradient) if gradient else None,
            )

    def detach(self, sending: Handle[None]) -> DetachOperation:
        assert isinstance(sending, SendOperation), "only a send can be detached"
        return DetachOperation(sending, self.is_lost)

    def start(self, work: Awaitable[T]) -> Handle[T]:
        operation: Operation[T]
        if isinstance(work, Operation):
            operation = work
        else:
            assert inspect.iscoroutine(work), "start takes an operation or a coroutine"
            operation = Background(self, cast(Coroutine[Any, None, T], work))
        self.waits.begin(operation)
        return operation

    def first(self, handles: Sequence[Handle[Any]]) -> FirstOperation:
        return FirstOperation(self, cast(Sequence[Operation[Any]], handles))

    def sleep(self, seconds: float) -> SleepOperation:
        return SleepOperation(self, seconds)

    def window(self, name: str, group: Sequence[int], *, rows: int, like: Tensor) -> LocalWindow:
        if len({self.hosts[rank] for rank in group}) > 1:
            bound = f"needs ranks that share memory, which those on {self.wiring.words} do not"
            raise ConfigurationError("window", bound, name, 'use link="shared-memory" or pass messages')
        key = (name, tuple(group), rows, like.numel(), like.dtype)
        if key not in self._windows:
            self._windows[key] = LocalWindow.open(self, name, group, rows, like)
        return self._windows[key]

    def execute(
        self, collective: Collective, group: Sequence[int], data: Tensor, *, combine: Combine, tag: int
    ) -> Awaitable[None]:
        return interpret(self, collective, group, data, combine=combine, tag=tag)

    async def native_all_reduce(self, tensor: Tensor, group: Sequence[int], op: str) -> None:
        if self.wiring.is_strict:
            remedy = 'torch.distributed does not pass it: use another algorithm, or link="shared-memory"'
            bound = f"must not be native on {self.wiring.words}"
            raise ConfigurationError("algorithm", bound, "native", remedy)
        start_s = self.now()
        self._native.all_reduce(tensor, self.rank, group, op)
        self.span(Kind.RECEIVE, start_s, self.now(), nbytes=tensor.numel() * tensor.itemsize)

    # How this rank waits

    def wait(self, operation: Operation[Any]) -> None:
        self.waits.until_done(operation, self.step)

    def wake(self) -> None:
        """From a thread of this rank: there is news."""
        self.board.bells.ring(self.rank)

    def settle(self) -> None:
        """At the end of the program: let what is still under way come to its end."""
        self.waits.settle(self.step)
        if ComputeOperation._under_way is not None:
            ComputeOperation._under_way.result()  # a cancelled one may not have stopped and written its span yet

    def describe_links(self) -> list[str]:
        """For people who look into a run that stands still."""
        return self._port.describe()

    # Notes

    def note_lost(self, rank: int) -> None:
        super().note_lost(rank)
        self.waits.do_without(rank)
        if not self.is_lost(rank):  # it is only late, but the run goes on without it
            self.driver.give_up_on(rank)

    def span(self, kind: Kind, start_s: float, end_s: float, peer: int = -1, nbytes: int = 0) -> None:
        super().span(kind, start_s, end_s, peer, nbytes)
        if kind is Kind.COMPUTE or kind is Kind.CANCELLED:
            self.board.note_computing(self.rank, end_s - start_s, ended=kind is Kind.COMPUTE)

    def _note_sent(self, operation: SendOperation) -> None:
        self.outcome.bytes_sent += operation.nbytes
        self.outcome.messages_sent += 1
        start_s = operation.began_s - self._start_s
        end_s = min(operation.ended_s - self._start_s, self.now())
        self.span(Kind.SEND, start_s, end_s, operation.to, operation.nbytes)

    def _note_received(self, operation: RecvOperation) -> None:
        began_s, found_s = operation.began_s - self._start_s, operation.found_s - self._start_s
        if found_s - began_s > _NEGLIGIBLE_S:
            self.span(Kind.WAIT, began_s, found_s, operation.source)
        assert operation.header is not None
        end_s = min(operation.ended_s - self._start_s, self.now())
        self.span(Kind.RECEIVE, found_s, end_s, operation.source, operation.header.nbytes)

    def show_progress(self, record: dict[str, Any]) -> None:
        losses = self.outcome.losses
        loss = record.get("loss", losses[-1][1] if losses else float("nan"))
        metric = record["metric"] if record["metric"] is not None else float("nan")
        samples = self.samples_by(record)
        self.board.write_report(record["step"], loss, samples, record["seconds"], metric)
