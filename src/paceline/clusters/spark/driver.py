"""Driver side of a run on Spark: a job that surveys the executors, and a job whose tasks are the ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from paceline.clusters.base.job import Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.hosts import actor
from paceline.clusters.hosts.code import own_modules, own_path
from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.hub_socket import HubSocket
from paceline.clusters.hosts.starting import LOOPBACK, START_S, check_installed, new_terms, pack
from paceline.clusters.hosts.table import Member, whereabouts
from paceline.clusters.hosts.table import Table as Members
from paceline.clusters.process.letters import read_error
from paceline.clusters.spark import tasks
from paceline.clusters.spark.tables import remove, store
from paceline.errors import DeadlineError, PeerLost, RunError
from paceline.runs.run import Progress
from paceline.system import interrupts
from paceline.task.tables import Table

if TYPE_CHECKING:
    from paceline.clusters.spark.spark import Spark

_POLL_S = 0.1
_ENDED_S = 10.0  # how long a task may take to end after its rank


class SparkRun:
    """One run, in an open SparkContext."""

    def __init__(self, cluster: Spark, job: Job, context: Any) -> None:
        self._cluster = cluster
        self._job = job
        self._context = context
        self._wait_s = max(cluster.deadline_s, START_S)

    def work(
        self, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Run the job to its end. Raise the error that ended it early."""
        cluster, job = self._cluster, self._job
        said = (own_path(), os.getcwd(), own_modules())
        spans_hosts, missing = self._survey(said)
        terms = new_terms(cluster, spans_hosts=spans_hosts)
        bind = self._context.getConf().get("spark.driver.host") if spans_hosts else LOOPBACK
        with contextlib.ExitStack() as stack:
            job = self._with_stored_rows(stack)
            memory = pack(cluster, job, missing, spans_hosts=spans_hosts)
            payload = self._context.broadcast(bytes(memory.view))
            stack.callback(payload.destroy)
            door = stack.enter_context(_Door(terms["run_id"], bind, cluster.ports, self._wait_s))
            hub = Hub(job, bind=bind, deadline_s=cluster.deadline_s, **terms)
            given = {**terms, "spans_hosts": spans_hosts, "hub": hub.address, "door": door.invitation}
            started = stack.enter_context(
                self._start(functools.partial(tasks.take_part, said, payload, given))
            )
            stack.callback(hub.close)  # before the tasks are cancelled, so that ranks receive the reason
            started.members = door.members(started)
            outcomes = hub.work(self._members(terms, hub, started.members), started, progress, consult)
            started.is_done = True
        outcomes[job.reporter].facts["spark"] = self._context.version
        return outcomes

    def _with_stored_rows(self, stack: contextlib.ExitStack) -> Job:
        """Return the job with its table, if it has one, in files of the executors."""
        task = self._job.task
        if task is None or not isinstance(task.data, Table):
            return self._job
        rows = store(self._context, task.data)
        stack.callback(remove, rows)
        return dataclasses.replace(self._job, task=dataclasses.replace(task, data=rows))

    @staticmethod
    def _members(terms: dict[str, Any], hub: Hub, members: list[Member]) -> Members:
        named = {name: terms[name] for name in ("run_id", "token", "encrypt")}
        return Members(**named, hub=hub.address, members=members)

    def _survey(self, said: tuple[Any, ...]) -> tuple[bool, set[str]]:
        """Check the versions of the executors. Return whether there are other hosts, and the modules missing there."""
        with self._start(functools.partial(tasks.survey, said)) as started:
            answers = started.result(self._wait_s)
        check_installed([versions for versions, _, _ in answers])
        hosts = {where.host for _, where, _ in answers} | {whereabouts().host}
        return len(hosts) > 1, {name for _, _, names in answers for name in names}

    def _start(self, function: Callable[[], Iterator[Any]]) -> _Tasks:
        return _Tasks(self._context, function, self._job.ranks)


class _Tasks:
    """A barrier job, which a thread waits for. The hub polls it for lost ranks."""

    def __init__(self, context: Any, function: Callable[[], Iterator[Any]], ranks: int) -> None:
        self._context = context
        self._function = function
        self._ranks = ranks
        self._group = f"paceline-{secrets.token_hex(8)}"
        self._results: list[Any] | None = None
        self._error: BaseException | None = None
        self.members: list[Member] = []
        self.is_done = False
        """Whether the run is complete, so that the tasks will end soon."""
        self._thread = threading.Thread(target=self._work, name="spark-job", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        context, function, ranks = self._context, self._function, self._ranks
        try:
            context.setJobGroup(self._group, "a run of Paceline")
            with _by_value():
                stage = context.parallelize(range(ranks), ranks).barrier()
                self._results = stage.mapPartitions(lambda _: function()).collect()
        except BaseException as error:
            self._error = error

    def result(self, wait_s: float) -> list[Any]:
        until_s = time.monotonic() + wait_s
        while self._thread.is_alive():
            interrupts.safe_point()
            self._thread.join(_POLL_S)
            if time.monotonic() > until_s:
                raise DeadlineError(-1, "starting", "the tasks of Spark", wait_s)
        self.losses()
        assert self._results is not None
        return self._results

    def losses(self) -> Iterable[tuple[int, str]]:
        """Raise an error if the job has failed. Spark never repeats a barrier stage that returns results."""
        if self._error is not None:
            raise self._failure(str(self._error))
        return ()

    def _failure(self, text: str) -> RunError:
        """Return the error of a failed job. One lost task ends all tasks of a barrier stage."""
        found = re.search(r"ExecutorLostFailure \(executor (\S+) ", text)
        for rank, member in enumerate(self.members):
            if found and member.where.host_name.endswith(f", executor {found[1]}"):
                return PeerLost(rank, f"on host {member.where.host_name}: Spark lost its executor")
        return RunError(f"Spark ended the tasks of the run: {_summary(text)}")

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):  # Spark may have ended
            self._context.cancelJobGroup(self._group)

    def __enter__(self) -> _Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        """End the job, and wait for its tasks."""
        if self.is_done:
            self._thread.join(_ENDED_S)
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(_ENDED_S)


class _Door:
    """Listener on which the driver receives the members of the run from rank 0."""

    def __init__(self, run_id: bytes, bind: str, ports: range | None, wait_s: float) -> None:
        token = secrets.token_bytes(16)
        # The members are public: addresses, certificates, versions. The token proves where they come from.
        self._socket = HubSocket(run_id=run_id, bind=bind, encrypt=False, token=token, ports=ports)
        self._socket.admit({"0": b""})
        self._wait_s = wait_s
        self.invitation = (self._socket.address, token, wait_s)

    def members(self, started: _Tasks) -> list[Member]:
        until_s = time.monotonic() + self._wait_s
        while time.monotonic() < until_s:
            interrupts.safe_point()
            started.losses()
            for _, letter in self._socket.receive(_POLL_S):
                if letter is not None:
                    return _read(letter.values["answers"])
        raise DeadlineError(-1, "starting", "the ranks in Spark's tasks", self._wait_s)

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger_s=0.0)


def _read(answers: list[dict[str, Any]]) -> list[Member]:
    for answer in answers:
        if "address" not in answer:
            raise read_error(answer)
    return tasks.read_members(answers)


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Pickle the code of the tasks by value: see their module."""
    pickler = importlib.import_module("pyspark.cloudpickle")
    modules = [tasks, actor]
    for module in modules:
        pickler.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            pickler.unregister_pickle_by_value(module)


def _summary(text: str) -> str:
    """Return the line of Spark's long message that tells the cause: the last line of a traceback, if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.fullmatch(r"[\w.]*(Error|Exception)(: .*)?", line)]
    python = [line for line in errors if not line.startswith("org.apache")]
    return (python or errors or lines or ["without a message"])[-1]
