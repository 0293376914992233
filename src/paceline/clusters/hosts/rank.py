"""The life of a rank on one of several hosts, from taking its place to its last letter."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from paceline.chance import kept
from paceline.clusters.hosts.driver import HubDriver
from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.hosts.table import Member, Table, whereabouts
from paceline.clusters.job import Job
from paceline.clusters.local.worker import drive, seed_chance
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.letters import write_error, write_outcome
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.wiring import Wiring
from paceline.clusters.rank.keeper import prepare
from paceline.clusters.threads import computing_threads
from paceline.costs.stragglers import Stragglers
from paceline.errors import Cancelled, RunError
from paceline.links import fuzz
from paceline.links.bells import Bells, SocketBells
from paceline.links.lending import Lending
from paceline.links.memory import SharedMemory
from paceline.links.mixed import MixedWays
from paceline.links.shared_memory import RingWays
from paceline.links.tcp import TcpEndpoint, TcpWays
from paceline.replica.devices import device_of

__all__ = ["Assignment", "RankProcess"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What is the same for all ranks, and private to the run: it reaches them by their launcher."""

    job: Job
    stragglers: Stragglers
    deadline_s: float
    threads: int | None
    """Of each rank. None: its share of its host's cores."""
    device: str
    """Of all ranks, as a word. Each host says for itself what that is there."""


class RankProcess:
    """A process's place in a run, taken before the run begins: a socket, and keys of its own."""

    def __init__(
        self,
        rank: int,
        *,
        run_id: bytes,
        token: bytes,
        encrypt: bool,
        bind: str,
        ports: range | None = None,
    ) -> None:
        self._rank = rank
        self._endpoint = TcpEndpoint(
            rank, run_id=run_id, bind=bind, ports=ports, encrypt=encrypt, token=token
        )

    @property
    def member(self) -> Member:
        return Member(seat=self._endpoint.seat, where=whereabouts())

    def work(self, assignment: Assignment, table: Table) -> Letter | None:
        """Run this rank's program to its end; what the hub said in parting."""
        job, endpoint = assignment.job, self._endpoint
        fuzz.begin(self._rank)
        endpoint.meet([member.seat for member in table.members])
        board = StatusBoard(SharedMemory.create("board", StatusBoard.nbytes(job.ranks)), job.ranks)
        board.last_step = job.steps
        client = HubClient(
            self._rank, board, endpoint.context, endpoint.gate, table.hub, deadline_s=assignment.deadline_s
        )
        try:
            threads = assignment.threads or table.threads_of(self._rank, job.workers)
            with computing_threads(threads), kept():
                self._run(assignment, table, HubDriver(self._rank, job.workers, board, client))
            return client.wait_to_part()
        finally:
            client.close()
            endpoint.close()

    def _run(self, assignment: Assignment, table: Table, driver: HubDriver) -> None:
        """Write to the driver how it went, whatever it was."""
        rank, job, client = self._rank, assignment.job, driver.client
        context: ProcessContext | None = None
        try:
            if job.task is not None:
                # Torch imports it with the first optimizer, which takes seconds: not in the run's time.
                importlib.import_module("torch._dynamo")
            seed_chance(job.seed, rank)
            context = self._open(assignment, table, driver)
            prepare(context)
            context.prepare()
            client.tell("ready")
            context.begin(client.wait_for_go())
            result = drive(context.live())
            outcome = context.finish()
            outcome.result = result
            client.tell("done", *write_outcome(outcome))
        except (Exception, SystemExit, Cancelled) as error:
            client.tell("error", write_error(rank, context.step if context else 0, error))
        except KeyboardInterrupt:
            client.tell("error", write_error(rank, 0, RunError(f"rank {rank} was interrupted")))
            raise
        finally:
            if context is not None:
                context.close()

    def _open(self, assignment: Assignment, table: Table, driver: HubDriver) -> ProcessContext:
        """Join the ranks of this host by shared memory, and the others by TCP."""
        rank, job, endpoint = self._rank, assignment.job, self._endpoint
        bells = SocketBells(driver.memory("bells", Bells.nbytes(job.ranks)), 0, job.ranks, table.run_id.hex())
        bells.watch(rank, endpoint)
        driver.board.bells = bells
        lending = Lending(rank, driver.memory)
        near = RingWays(rank, job.ranks, driver.memory("rings", RingWays.nbytes(job.ranks)), bells, lending)
        wiring = Wiring(
            ways=MixedWays(near, TcpWays(endpoint), table.hosts, rank),
            hosts=table.hosts,
            words="encrypted TCP" if table.encrypt else "TCP",
            lending=lending,
            is_strict=True,
            endpoint=endpoint,
        )
        return ProcessContext(
            job,
            rank,
            driver=driver,
            wiring=wiring,
            stragglers=assignment.stragglers,
            deadline_s=assignment.deadline_s,
            device=device_of(assignment.device, table.hosts[:rank].count(table.hosts[rank])),
        )
