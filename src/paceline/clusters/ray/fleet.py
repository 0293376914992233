"""Processes on a Ray cluster: placement, start, runs, monitoring and end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.clusters.base.job import Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.hosts.actor import RankActor
from paceline.clusters.hosts.code import own_modules, own_path
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.starting import LOOPBACK, START_S, check_installed, new_terms, pack
from paceline.clusters.hosts.table import Member, Table, Whereabouts, whereabouts
from paceline.clusters.process.letters import read_error
from paceline.clusters.ray.connection import connected, import_ray
from paceline.clusters.ray.placement import Placement
from paceline.errors import DeadlineError, PeerLost, RunError
from paceline.runs.run import Progress
from paceline.system import interrupts

if TYPE_CHECKING:
    from paceline.clusters.ray.ray import Ray

_ENDED_S = 10.0  # how long Ray may take to report that a process has ended
_POLL_S = 0.5  # how often a wait checks for an interrupt


class Fleet:
    """Actors that can become ranks. The context manager ends them all in every case."""

    def __init__(self, cluster: Ray, ranks: int) -> None:
        self._cluster = cluster
        self._stack = contextlib.ExitStack()
        self.ranks = ranks
        self.is_whole = True
        """Whether no process has been lost."""

    def __enter__(self) -> Fleet:
        cluster, ranks = self._cluster, self.ranks
        with contextlib.ExitStack() as stack:
            stack.enter_context(connected(cluster.address, ranks, cluster.resources))
            self._ray = import_ray()
            self._placement = stack.enter_context(
                Placement(ranks, cluster.resources, spread=cluster.spread, deadline_s=cluster.deadline_s)
            )
            self._actors: list[Any] = []
            stack.callback(self._end_actors)
            self._start_actors()
            self._places: list[Whereabouts] = self._ask(range(ranks), "settle")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(
        self, job: Job, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Run a job to its end. Raise the error that ended it early."""
        cluster, chosen = self._cluster, self._choose(job.ranks)
        places = [self._places[actor] for actor in chosen]
        spans_hosts = len({place.host for place in (whereabouts(), *places)}) > 1
        terms = new_terms(cluster, spans_hosts=spans_hosts)
        bind = self._ray.util.get_node_ip_address() if spans_hosts else LOOPBACK
        hub = Hub(job, bind=bind, deadline_s=cluster.deadline_s, **terms)
        try:
            handed = self._hand_out(job, chosen, spans_hosts=spans_hosts)
            binds = [self._placement.addresses[actor] if spans_hosts else LOOPBACK for actor in chosen]
            members = self._join(chosen, handed, binds, **terms)
            table = Table(
                run_id=terms["run_id"],
                token=terms["token"],
                encrypt=terms["encrypt"],
                hub=hub.address,
                members=members,
            )
            outcomes = hub.work(table, self._send_to_work(chosen, table), progress, consult)
            outcomes[job.reporter].facts["ray"] = self._ray.__version__
            return outcomes
        finally:
            hub.close()

    def _choose(self, ranks: int) -> list[int]:
        """Return the actors of a run, the same number from each host if possible."""
        turns: dict[str, int] = {}
        order = []
        for actor, place in enumerate(self._places):
            turns[place.host] = turns.get(place.host, 0) + 1
            order.append((turns[place.host] if self._cluster.spread else 0, actor))
        return sorted(actor for _, actor in sorted(order)[:ranks])

    # Starting

    def _start_actors(self) -> None:
        with _by_value(self._ray):
            remote = self._ray.remote(RankActor)
            for options in self._placement.options():
                self._actors.append(remote.options(**options, max_restarts=0, max_task_retries=0).remote())
            # Ray pickles the class when it starts the first actor, so wait for the start inside this block.
            answers = self._ask(range(self.ranks), "versions")
        check_installed(answers)

    def _hand_out(self, job: Job, chosen: Sequence[int], *, spans_hosts: bool) -> list[tuple[str, int]]:
        """Send the task and its objects once to each host. Return the path and size for each rank."""
        said = (own_path(), os.getcwd(), own_modules())
        missing = {name for names in self._ask(chosen, "look", [said] * job.ranks) for name in names}
        memory = pack(self._cluster, job, missing, spans_hosts=spans_hosts)
        stored = self._ray.put(np.frombuffer(memory.view, dtype=np.uint8))
        leaders = {self._places[actor].host: actor for actor in reversed(chosen)}
        answers = self._ask(list(leaders.values()), "keep", [(stored,)] * len(leaders))
        found = dict(zip(leaders, answers, strict=True))
        return [found[self._places[actor].host] for actor in chosen]

    def _join(
        self, chosen: Sequence[int], handed: Sequence[tuple[str, int]], binds: Sequence[str], **terms: Any
    ) -> list[Member]:
        given = [(rank, *where) for rank, where in enumerate(handed)]
        answers = self._ask(chosen, "join", given, [{**terms, "bind": bind} for bind in binds])
        for answer in answers:
            if isinstance(answer, dict):
                raise read_error(answer)
        return answers

    def _send_to_work(self, chosen: Sequence[int], table: Table) -> _Work:
        futures = {self._actors[actor].work.remote(table): rank for rank, actor in enumerate(chosen)}
        return _Work(self, self._ray, futures)

    # Requests

    def _ask(
        self,
        actors: Sequence[int],
        method: str,
        given: Sequence[tuple[Any, ...]] | None = None,
        named: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Return the results of a method on each of these actors. While a fleet starts, an actor's number is its
        rank."""
        futures = [
            getattr(self._actors[actor], method).remote(*args, **words)
            for actor, args, words in zip(
                actors, given or [()] * len(actors), named or [{}] * len(actors), strict=True
            )
        ]
        wait_s = max(self._cluster.deadline_s, START_S)
        until_s = time.monotonic() + wait_s
        hosts = [self._placement.host_names[actor] for actor in actors]
        return [
            self._answer(future, f"rank {rank} on host {host}", rank, until_s)
            for rank, (future, host) in enumerate(zip(futures, hosts, strict=True))
        ]

    def _answer(self, future: Any, who: str, rank: int, until_s: float) -> Any:
        errors = self._ray.exceptions
        try:
            return self._wait_for(future, until_s)
        except errors.GetTimeoutError:
            raise DeadlineError(-1, "starting", who, max(self._cluster.deadline_s, START_S)) from None
        except errors.RayTaskError as error:
            raise RunError(f"{who} could not start:\n{error}") from None
        except errors.RayError as error:
            raise PeerLost(
                rank, f"{how_it_ended(error)}; it was starting, {who.partition(' on ')[2]}"
            ) from None

    def _wait_for(self, future: Any, until_s: float) -> Any:
        while time.monotonic() < until_s - _POLL_S:
            interrupts.safe_point()
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                return self._ray.get(future, timeout=_POLL_S)
        return self._ray.get(future, timeout=_POLL_S)

    # Ending

    def _end_actors(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # a cluster that has ended has no actors
                self._ray.kill(actor, no_restart=True)


class _Work:
    """The ranks of one run. The hub polls it for lost ranks."""

    def __init__(self, fleet: Fleet, ray: Any, futures: dict[Any, int]) -> None:
        self._fleet = fleet
        self._ray = ray
        self._ranks = futures
        """Rank of each Ray future."""

    def losses(self) -> Iterable[tuple[int, str]]:
        """Yield the ranks that have ended since the last call, with a reason for each."""
        if not self._ranks:
            return
        ended, _ = self._ray.wait(list(self._ranks), num_returns=len(self._ranks), timeout=0)
        for future in ended:
            rank = self._ranks.pop(future)
            try:
                self._ray.get(future, timeout=_ENDED_S)
            except self._ray.exceptions.RayError as error:
                self._fleet.is_whole = False
                yield rank, how_it_ended(error)


@contextlib.contextmanager
def _by_value(ray: Any) -> Iterator[None]:
    """Pickle the actor's class by value: see its module."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[RankActor.__module__])
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[RankActor.__module__])


def how_it_ended(error: Exception) -> str:
    """Return a one-line summary of Ray's long message."""
    text = str(error)
    if "node has died" in text or "node died" in text or "node was terminated" in text:
        return "its host left the Ray cluster"
    if "OutOfMemory" in type(error).__name__ or "low on memory" in text:
        return "Ray ended its process: the host is out of memory"
    if "SYSTEM_ERROR" in text or "connection error code" in text:
        return "its process ended without a message: killed, or crashed"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if isinstance(error, import_ray().exceptions.RayTaskError) else lines[0]
