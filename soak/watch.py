"""The parent of driver processes: hands out cases, waits with a limit, and keeps the evidence of what goes wrong."""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.cases import make_case
from soak.dump import dump
from soak.processes import descendants, read

__all__ = ["LIMIT_S", "Driver", "Result", "adopt_orphans"]

LIMIT_S = {"ray": 300.0}
"""How long a case on a cluster may take, 120 s unless said here. Each wait inside it has a shorter limit of its own."""
_OTHERS_S = 120.0
_END_S = 30.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of a case."""

    seed: int
    seconds: float = 0.0
    error: str = ""
    fired: bool = False
    violations: list[str] = field(default_factory=list)


def adopt_orphans() -> None:
    """What outlives a driver becomes a child of this process, which so hears of it."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)


class Driver:
    """A driver process, and how to talk to it."""

    def __init__(self, evidence: Path, fuzz: int | None) -> None:
        self._evidence = evidence
        self._temporary = tempfile.mkdtemp(prefix="soak-")
        self._log = open(Path(self._temporary).with_suffix(".log"), "w+b")  # noqa: SIM115
        environment = {**os.environ, "SOAK": "1", "TMPDIR": self._temporary, "RAY_DEDUP_LOGS": "0"}
        environment.pop("PACELINE_FUZZ", None)
        if fuzz is not None:
            environment["PACELINE_FUZZ"] = str(fuzz)
        self._answers, theirs = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soak.driver", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs,),
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self._rest = b""
        self._is_ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, seed: int) -> Result:
        """Have it run a case. A driver that hangs or dies is dumped and ended."""
        began_s, limit_s = time.monotonic(), LIMIT_S.get(make_case(seed).cluster, _OTHERS_S)
        try:
            self._wait_until_ready()
            self._write(seed)
            answer = self._read(limit_s)
        except (BrokenPipeError, EOFError):
            answer = {"seed": seed, "violations": [f"the driver ended with code {self._process.wait()}"]}
        except TimeoutError:
            self._dump(seed)
            self._kill()
            answer = {"seed": seed, "violations": [f"no end after {limit_s:g} s"]}
        result = Result(**{"seconds": time.monotonic() - began_s, **answer})
        if result.violations:
            self._keep(result)
        return result

    def end(self, seed: int) -> Result:
        """Let it end by itself. `seed` is the last case that it ran."""
        violations = []
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        was_killed = self._process.poll() == -signal.SIGKILL
        if not self._ends():
            self._dump(seed)
            violations.append(f"the driver did not end within {_END_S:g} s of its last run")
        left = [] if was_killed else _left_over()
        violations += [f"outlived the driver: process {pid} {read(pid, 'cmdline')[:80]}" for pid in left]
        self._kill()
        result = Result(seed=seed, violations=violations)
        if violations:
            self._keep(result)
        os.close(self._answers)
        self._log.close()
        Path(self._log.name).unlink()
        shutil.rmtree(self._temporary, ignore_errors=True)
        return result

    def _write(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n".encode())
        self._process.stdin.flush()

    def _wait_until_ready(self) -> None:
        """It has to load torch first, which is not the case's time."""
        if not self._is_ready:
            self._read(_OTHERS_S)
            self._is_ready = True

    def _read(self, limit_s: float) -> dict[str, Any]:
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self._answers, 65536)
            if not part:
                raise EOFError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ends(self) -> bool:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _dump(self, seed: int) -> None:
        pids = [self._process.pid, *(process.pid for process in descendants(self._process.pid))]
        dump(pids, self._evidence / str(seed))

    def _kill(self) -> None:
        """The driver and all below this process, whoever its parent is by now."""
        for _ in range(3):
            for process in descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        self._process.wait()
        _reap()

    def _keep(self, result: Result) -> None:
        folder = self._evidence / str(result.seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.txt").write_text(make_case(result.seed).describe() + "\n", encoding="utf-8")
        with open(folder / "violations.txt", "a", encoding="utf-8") as out:
            out.writelines(f"{violation}\n" for violation in result.violations)
        self._log.seek(0)
        (folder / "driver.log").write_bytes(self._log.read())
        self._log.seek(0, os.SEEK_END)


def _left_over() -> list[int]:
    """Processes that a driver has left, after a while for them to end."""
    until_s = time.monotonic() + _END_S
    while True:
        _reap()
        left = [process.pid for process in descendants(os.getpid()) if process.is_alive]
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(0.05)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
