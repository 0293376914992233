"""The processes of one run on a Ray cluster: placed, started, watched and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.clusters import payload, ray_actor
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.rank import Duty
from paceline.clusters.hosts.table import Member, Table, Whereabouts, check_versions, whereabouts
from paceline.clusters.job import Job, Outcome
from paceline.clusters.letters import read_error
from paceline.clusters.ray_code import own_modules, own_path, travelling_by_value
from paceline.clusters.ray_connection import connected, import_ray
from paceline.clusters.ray_placement import Placement
from paceline.errors import DeadlineError, PeerLost, RunError
from paceline.links.chunks import RUN_ID_BYTES
from paceline.run import Progress
from paceline.task import user_code

if TYPE_CHECKING:
    from paceline.clusters.ray import Ray

__all__ = ["Fleet"]

_log = logging.getLogger("paceline")

_LOOPBACK = "127.0.0.1"


class Fleet:
    """The actors of one run, a rank each. As a context manager it ends them all, whatever happens."""

    def __init__(self, cluster: Ray, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._stack = contextlib.ExitStack()
        self._actors: list[Any] = []
        self._pending: dict[Any, int] = {}
        """The rank whose work each of Ray's futures stands for."""

    def __enter__(self) -> Fleet:
        cluster, ranks = self._cluster, self._job.ranks
        with contextlib.ExitStack() as stack:
            stack.enter_context(connected(cluster.address, ranks, cluster.resources))
            self._ray = import_ray()
            self._placement = stack.enter_context(
                Placement(ranks, cluster.resources, spread=cluster.spread, deadline_s=cluster.deadline_s)
            )
            stack.callback(self._end_actors)
            self._start_actors()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def work(self, progress: Callable[[Progress], None] | None) -> list[Outcome]:
        """Run the job to its end; raise what ended it early."""
        cluster = self._cluster
        places, missing = self._settle()
        mine = whereabouts()
        spans_hosts = len({place.host for place in (mine, *places)}) > 1
        encrypt = spans_hosts if cluster.encrypt is None else cluster.encrypt
        run_id = secrets.token_bytes(RUN_ID_BYTES)
        token = b"" if encrypt else secrets.token_bytes(16)
        terms: dict[str, Any] = {"encrypt": encrypt, "token": token, "ports": cluster.ports}
        bind = self._ray.util.get_node_ip_address() if spans_hosts else _LOOPBACK
        hub = Hub(self._job, bind=bind, deadline_s=cluster.deadline_s, **terms)
        try:
            members = self._join(places, missing, run_id=run_id, spans_hosts=spans_hosts, **terms)
            table = Table(run_id=run_id, token=token, encrypt=encrypt, hub=hub.seat, members=members)
            self._pending = {actor.work.remote(table): rank for rank, actor in enumerate(self._actors)}
            return hub.work(table, self, progress)
        finally:
            hub.close()

    def losses(self) -> Iterable[tuple[int, str]]:
        """The ranks whose processes have ended since it was last asked, and how."""
        if not self._pending:
            return
        ended, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for future in ended:
            rank = self._pending.pop(future)
            try:
                self._ray.get(future)
            except self._ray.exceptions.RayError as error:
                yield rank, how_it_ended(error)

    # Starting

    def _start_actors(self) -> None:
        with _by_value(self._ray):
            remote = self._ray.remote(ray_actor.RankActor)
            for options in self._placement.options():
                self._actors.append(remote.options(**options, max_restarts=0, max_task_retries=0).remote())
            # The class leaves this process with the first of its actors.
            answers = self._call("versions", [()] * len(self._actors))
        self._check(answers)

    def _check(self, answers: Sequence[tuple[str, int, dict[str, str | None]]]) -> None:
        """Refuse hosts that do not have what the driver has, before anything of it is used there."""
        found = []
        for rank, (host_name, pid, versions) in enumerate(answers):
            for package, version in versions.items():
                if version is None:
                    ours = whereabouts().versions[package]
                    remedy = f"install {package} {ours} there, as the driver has it"
                    raise RunError(f"rank {rank} on host {host_name} has no {package}; {remedy}")
            known = {package: version or "" for package, version in versions.items()}
            found.append(Whereabouts(host="", host_name=host_name, pid=pid, versions=known))
        check_versions(found, whereabouts().versions)

    def _settle(self) -> tuple[list[Whereabouts], list[str]]:
        """Where each rank is, and which of the user's modules some host does not have."""
        said = (own_path(), os.getcwd(), own_modules())
        answers = self._call("settle", [said] * self._job.ranks)
        return [where for where, _ in answers], sorted({name for _, names in answers for name in names})

    def _join(
        self, places: Sequence[Whereabouts], missing: Sequence[str], *, spans_hosts: bool, **terms: Any
    ) -> list[Member]:
        handed = self._hand_out(places, missing)
        binds = self._placement.addresses if spans_hosts else [_LOOPBACK] * len(places)
        given = [(rank, *handed[place.host]) for rank, place in enumerate(places)]
        answers = self._call("join", given, [{**terms, "bind": bind} for bind in binds])
        for answer in answers:
            if isinstance(answer, dict):
                raise read_error(answer)
        return answers

    def _hand_out(self, places: Sequence[Whereabouts], missing: Sequence[str]) -> dict[str, tuple[str, int]]:
        """The task and all that belongs to it, once for each host; where its ranks find it."""
        cluster = self._cluster
        duty = Duty(job=self._job, stragglers=cluster.stragglers, deadline_s=cluster.deadline_s)
        with user_code("the task cannot be sent to worker processes"), travelling_by_value(missing):
            packed = payload.store(duty)
        packed.close_fd()
        stored = self._ray.put(np.frombuffer(packed.view, dtype=np.uint8))
        leaders = {place.host: rank for rank, place in reversed(list(enumerate(places)))}
        answers = self._call("keep", [(stored,)] * len(leaders), ranks=list(leaders.values()))
        return dict(zip(leaders, answers, strict=True))

    def _call(
        self,
        method: str,
        given: Sequence[tuple[Any, ...]],
        named: Sequence[Mapping[str, Any]] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """What a method returns on each rank."""
        chosen = range(len(self._actors)) if ranks is None else ranks
        futures = [
            getattr(self._actors[rank], method).remote(*args, **words)
            for rank, args, words in zip(chosen, given, named or [{}] * len(given), strict=True)
        ]
        until_s = time.monotonic() + max(self._cluster.deadline_s, 60.0)
        return [
            self._answer(rank, future, method, until_s) for rank, future in zip(chosen, futures, strict=True)
        ]

    def _answer(self, rank: int, future: Any, method: str, until_s: float) -> Any:
        errors = self._ray.exceptions
        host = self._placement.host_names[rank]
        try:
            return self._ray.get(future, timeout=max(0.1, until_s - time.monotonic()))
        except errors.GetTimeoutError:
            waited_s = max(self._cluster.deadline_s, 60.0)
            raise DeadlineError(-1, f"starting ({method})", f"rank {rank} on host {host}", waited_s) from None
        except errors.RayTaskError as error:
            raise RunError(f"rank {rank} on host {host} could not start:\n{error}") from None
        except errors.RayError as error:
            raise PeerLost(rank, f"on host {host}, while starting: {how_it_ended(error)}") from None

    # Ending

    def _end_actors(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # a cluster that is gone has no actors
                self._ray.kill(actor, no_restart=True)


@contextlib.contextmanager
def _by_value(ray: Any) -> Iterator[None]:
    """The actor's class travels with its code: see its module."""
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_actor)


def how_it_ended(error: Exception) -> str:
    """In a line, of what Ray says in many."""
    text = str(error)
    if "node" in text and ("node has died" in text or "node died" in text or "node was terminated" in text):
        return "its host left the Ray cluster"
    if "OutOfMemory" in type(error).__name__ or "ran out of memory" in text or "low on memory" in text:
        return "Ray ended its process: the host is out of memory"
    if "SYSTEM_ERROR" in text or "connection error code" in text:
        return "its process ended without a word: killed, or crashed"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if isinstance(error, import_ray().exceptions.RayTaskError) else lines[0]
