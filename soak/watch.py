"""The parent of driver processes: assigns cases, waits with a time limit, and saves the data of failures."""

from __future__ import annotations

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
from soak.processes import marked, read
from tests.harness.watchdog import count_runnable, pace

LIMIT_S = 120.0
"""Time limits of a case and of the start of a driver. Each wait inside a case has a shorter limit. On an overloaded
machine the limits are extended like those of tests."""
_RAY_LIMIT_S = 300.0
_END_S = 30.0
_TICK_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a case."""

    seed: int
    seconds: float = 0.0
    error: str = ""
    fired: bool = False
    violations: list[str] = field(default_factory=list)


class Driver:
    """A driver process, and the communication with it."""

    def __init__(self, evidence: Path, fuzz: int | None, limit_s: float = LIMIT_S) -> None:
        self._evidence = evidence
        self._limit_s = limit_s
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
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        os.close(theirs)
        self._rest = b""
        self._is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, seed: int) -> Result:
        """Run a case. A driver that hangs or dies is dumped and killed."""
        began_s = time.monotonic()
        limit_s = _RAY_LIMIT_S if make_case(seed).cluster == "ray" else self._limit_s
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
        """Wait until the driver ends by itself. `seed` is the last case that it ran."""
        violations = []
        self._hang_up()
        was_killed = self._process.poll() == -signal.SIGKILL
        if not self._ends():
            self._dump(seed)
            violations.append(f"the driver did not end within {_END_S:g} s of its last run")
        left = [] if was_killed else self._left_over()
        violations += [f"outlived the driver: process {pid} {read(pid, 'cmdline')[:80]}" for pid in left]
        result = Result(seed=seed, violations=violations)
        if violations:
            self._keep(result)
        self.close()
        return result

    def close(self) -> None:
        """Kill the driver in any state."""
        self._kill()
        self._hang_up()
        os.close(self._answers)
        self._log.close()
        Path(self._log.name).unlink()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _write(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n".encode())
        self._process.stdin.flush()

    def _wait_until_ready(self) -> None:
        """Wait until the driver has loaded torch, which does not count for the case."""
        if not self._is_ready:
            self._read(self._limit_s)
            self._is_ready = True

    def _read(self, limit_s: float) -> dict[str, Any]:
        left_s = limit_s
        while b"\n" not in self._rest:
            began_s = time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], min(left_s, _TICK_S))
            if not ready:
                left_s -= (time.monotonic() - began_s) * pace(count_runnable(), os.cpu_count() or 1)
                if left_s <= 0:
                    raise TimeoutError
                continue
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

    def _own(self) -> list[int]:
        """Return the driver and all processes that it has started: only they have its temporary folder."""
        return [process.pid for process in marked(self._temporary)]

    def _left_over(self) -> list[int]:
        """Return the processes that are still alive some time after the driver has ended."""
        until_s = time.monotonic() + _END_S
        while (left := self._own()) and time.monotonic() < until_s:
            time.sleep(0.05)
        return left

    def _dump(self, seed: int) -> None:
        dump(self._own(), self._evidence / str(seed))

    def _kill(self) -> None:
        while left := self._own():  # a process may be starting another one
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait()

    def _keep(self, result: Result) -> None:
        folder = self._evidence / str(result.seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.txt").write_text(make_case(result.seed).describe() + "\n", encoding="utf-8")
        with open(folder / "violations.txt", "a", encoding="utf-8") as out:
            out.writelines(f"{violation}\n" for violation in result.violations)
        self._log.seek(0)
        (folder / "driver.log").write_bytes(self._log.read())
        self._log.seek(0, os.SEEK_END)
