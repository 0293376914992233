"""Lifecycle of a rank on one of several hosts, from opening its socket to its last message."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from paceline.clusters.base.job import Job
from paceline.clusters.base.threads import computing_threads
from paceline.clusters.hosts.driver import HubDriver
from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.hosts.table import Member, Table, whereabouts
from paceline.clusters.local.worker import drive, seed_generators
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.letters import write_error, write_outcome
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.wiring import Wiring
from paceline.clusters.rank.checkpoint_writer import prepare
from paceline.costs.stragglers import Stragglers
from paceline.errors import Cancelled, RunError
from paceline.links import fuzz
from paceline.links.memory.bells import Bells, SocketBells
from paceline.links.memory.lending import Lending
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import SharedMemory
from paceline.links.port import MixedWays
from paceline.links.tcp import TcpEndpoint, TcpWays
from paceline.model.devices import device_of
from paceline.system.seeding import rng_preserved


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Settings that are the same for all ranks. They are private to the run: the launcher sends them."""

    job: Job
    stragglers: Stragglers
    deadline_s: float
    threads: int | None
    """Compute threads of each rank. None for its share of the host's cores."""
    device: str
    """Device name, the same for all ranks. Each host resolves it for itself."""
    only_tcp: bool = False
    """Whether ranks of one host communicate over TCP too, as if each had a host of its own."""


OpenContext = Callable[..., ProcessContext]
"""Creates the context of a rank. The arguments are those of `ProcessContext`."""


class RankProcess:
    """A process of a run, created before the run starts. It has a socket and its own keys.

    With `open_context` the program runs beside the user's own code. It then leaves the random generators unchanged.
    """

    def __init__(
        self,
        rank: int,
        *,
        run_id: bytes,
        token: bytes,
        encrypt: bool,
        bind: str,
        ports: range | None = None,
        open_context: OpenContext | None = None,
    ) -> None:
        self._rank = rank
        self._open_context = open_context or ProcessContext
        self._owns_generators = open_context is None
        self._endpoint = TcpEndpoint(
            rank, run_id=run_id, bind=bind, ports=ports, encrypt=encrypt, token=token
        )

    @property
    def member(self) -> Member:
        return Member(address=self._endpoint.address, where=whereabouts())

    def work(self, assignment: Assignment, table: Table) -> Letter | None:
        """Run this rank's program to its end. Return the hub's last message, or None if the hub is lost."""
        job, endpoint = assignment.job, self._endpoint
        fuzz.begin(self._rank)
        endpoint.meet([member.address for member in table.members], {"hub": table.hub.certificate})
        board = StatusBoard(SharedMemory.create("board", StatusBoard.nbytes(job.ranks)), job.ranks)
        board.last_step = job.steps
        client = HubClient(
            self._rank, board, endpoint.authenticator, table.hub, deadline_s=assignment.deadline_s
        )
        try:
            threads = assignment.threads or table.threads_of(self._rank, job.workers)
            with computing_threads(threads), rng_preserved() if self._owns_generators else nullcontext():
                self._run(assignment, table, HubDriver(self._rank, job.workers, board, client))
            return client.wait_to_part()
        finally:
            client.close()
            endpoint.close()

    def _run(self, assignment: Assignment, table: Table, driver: HubDriver) -> None:
        """Run the program, and send the outcome or the error to the driver."""
        rank, job, client = self._rank, assignment.job, driver.client
        context: ProcessContext | None = None
        try:
            if job.task is not None:
                # Torch imports this module with the first optimizer. That takes seconds, so import it before the
                # run's clock starts.
                importlib.import_module("torch._dynamo")
            if self._owns_generators:
                seed_generators(job.seed, rank)
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
        """Connect to the ranks of this host by shared memory, and to the others by TCP."""
        rank, job, endpoint = self._rank, assignment.job, self._endpoint
        bells = SocketBells(driver.memory("bells", Bells.nbytes(job.ranks)), 0, job.ranks, table.run_id.hex())
        bells.watch(rank, endpoint)
        driver.board.bells = bells
        lending = Lending(rank, driver.memory)
        near = RingWays(rank, job.ranks, driver.memory("rings", RingWays.nbytes(job.ranks)), bells, lending)
        hosts = range(job.ranks) if assignment.only_tcp else table.hosts
        wiring = Wiring(
            ways=MixedWays(near, TcpWays(endpoint), hosts, rank),
            hosts=hosts,
            words="encrypted TCP" if table.encrypt else "TCP",
            lending=lending,
            is_strict=True,
            endpoint=endpoint,
        )
        return self._open_context(
            job,
            rank,
            driver=driver,
            wiring=wiring,
            stragglers=assignment.stragglers,
            deadline_s=assignment.deadline_s,
            device=device_of(assignment.device, table.hosts[:rank].count(table.hosts[rank])),
        )
