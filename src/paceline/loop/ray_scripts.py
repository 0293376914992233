"""Processes of a script with its own training loop on the hosts of a Ray cluster: `paceline run --ray`.

Ray places the ranks. On each place an actor starts the script as a process, passes its output on, and ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.clusters.process.offspring import dies_with_parent
from paceline.clusters.ray.connection import answered, connected, import_ray
from paceline.clusters.ray.fleet import how_it_ended
from paceline.clusters.ray.placement import Placement
from paceline.clusters.ray.ray import Ray
from paceline.errors import RunError
from paceline.loop.launch import GRACE_S, INTERRUPTED, LINES, exit_code, free_port, read_lines
from paceline.loop.settings import LoopSettings

_POLL_S = 0.1
_ANSWER_S = 60.0  # a busy host may take long to start an actor
_LOOPBACK = "127.0.0.1"


class ScriptActor:
    """The process of one rank, on the host where Ray has placed it."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()

    def free_port(self) -> int:
        return free_port()

    def start(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
        """Start the script in the driver's folder, if this host has it."""
        parent = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder if os.path.isdir(folder) else None,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: None if dies_with_parent(parent) else os._exit(1),  # noqa: PLW1509
        )
        output: IO[str] | None = self._process.stdout
        self._reader = threading.Thread(target=read_lines, args=(output, self._lines), daemon=True)
        self._reader.start()

    def poll(self) -> tuple[int | None, list[str]]:
        """Return the exit code, and the lines written since the last call. The code is None before the end."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(_POLL_S)
        return code, [self._lines.popleft() for _ in range(len(self._lines))]

    def interrupt(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)


class RayScripts:
    """One process of a script for each rank, on a Ray cluster. The context manager ends them all in every case.

    The output of the first process is written to the terminal. The last lines of a process that fails are shown.
    """

    def __init__(self, command: Sequence[str], ranks: int, settings: LoopSettings, cluster: Ray) -> None:
        self._command = list(command)
        self._ranks = ranks
        self._settings = settings
        self._cluster = cluster
        self._lines: list[deque[str]] = [deque(maxlen=LINES) for _ in range(ranks)]
        self._codes: list[int | None] = [None] * ranks

    def __enter__(self) -> RayScripts:
        cluster, ranks = self._cluster, self._ranks
        with contextlib.ExitStack() as stack:
            stack.enter_context(connected(cluster.address, ranks, cluster.resources))
            self._ray = import_ray()
            resources, deadline_s = cluster.resources, cluster.deadline_s
            self._place = stack.enter_context(
                Placement(ranks, resources, spread=cluster.spread, deadline_s=deadline_s)
            )
            self._actors: list[Any] = []
            stack.callback(self._end)
            self._start()
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def _start(self) -> None:
        remote, hosts = self._ray.remote(ScriptActor), self._place.addresses
        for options in self._place.options():
            self._actors.append(remote.options(**options, max_restarts=0).remote())
        port = self._get([self._actors[0].free_port.remote()])[0]
        common = {
            **{name: value for name, value in os.environ.items() if name.startswith("PACELINE_")},
            **self._settings.to_environment(),
            "WORLD_SIZE": str(self._ranks),
            "MASTER_ADDR": _LOOPBACK if len(set(hosts)) == 1 else hosts[0],
            "MASTER_PORT": str(port),
        }
        started = []
        for rank, actor in enumerate(self._actors):
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
                "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
            }
            started.append(actor.start.remote(self._command, os.getcwd(), {**common, **own}))
        self._get(started)

    def _get(self, futures: Sequence[Any]) -> list[Any]:
        """Return the answers of the actors of the first ranks."""
        answers = []
        for rank, future in enumerate(futures):
            try:
                answers.append(self._ray.get(future, timeout=_ANSWER_S))
            except self._ray.exceptions.GetTimeoutError:
                host = self._place.host_names[rank]
                message = f"the actor of rank {rank} on host {host} did not answer within {_ANSWER_S:g} s"
                raise RunError(message) from None
            except self._ray.exceptions.RayError as error:
                host = self._place.host_names[rank]
                raise RunError(f"rank {rank} on host {host} is lost: {how_it_ended(error)}") from None
        return answers

    def wait(self) -> int:
        """Wait for the end of all processes. Return the exit code of the first that failed, or 0."""
        try:
            while all(code == 0 or code is None for code in self._codes) and None in self._codes:
                self._poll()
            failed = next((rank for rank, code in enumerate(self._codes) if code), None)
            if failed is None:
                return 0
            self._wait_until(time.monotonic() + GRACE_S)
        except KeyboardInterrupt:
            for actor in self._actors:
                actor.interrupt.remote()
            self._wait_until(time.monotonic() + GRACE_S)
            return INTERRUPTED
        for line in self._lines[failed] if failed else ():
            sys.stderr.write(f"[rank {failed} on {self._place.host_names[failed]}] {line}")
        code = self._codes[failed]
        assert code is not None
        return exit_code(code)

    def _wait_until(self, until_s: float) -> None:
        while None in self._codes and time.monotonic() < until_s:
            self._poll()

    def _poll(self) -> None:
        time.sleep(_POLL_S)
        answers = self._get([actor.poll.remote() for actor in self._actors])
        for rank, (code, lines) in enumerate(answers):
            self._codes[rank] = code
            self._lines[rank].extend(lines)
            if rank == 0:
                sys.stdout.write("".join(lines))
                sys.stdout.flush()

    def _end(self) -> None:
        """End the actors. The kernel ends their processes."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # a cluster that has ended has no actors
                answered(lambda actor=actor: self._ray.kill(actor, no_restart=True))  # type: ignore[misc]
