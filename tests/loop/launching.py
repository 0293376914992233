"""Scripts with their own loop, in processes that are forked from one that has imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import PATIENCE_S

from paceline.strategies import parse

__all__ = ["Ended", "Launcher", "free_port", "launcher"]

# Each line is one launch: ranks, port, settings, folder, script, arguments. Exit codes are printed, output is in files.
LAUNCHER = """
import atexit, json, os, runpy, sys
import torch, torch._dynamo, paceline.loop.prepare

def start(rank, ranks, port, settings, folder, script, words):
    pid = os.fork()
    if pid:
        return pid
    if ranks:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"MASTER_PORT": str(port), "PACELINE_RUN": json.dumps(settings)}
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    output = os.open(f"output-{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    sys.argv, code = [script, *words], 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    ranks, port, *rest = json.loads(line)
    pids = [start(rank, ranks, port, *rest) for rank in range(max(1, ranks))]
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How the processes of one launch have ended."""

    codes: list[int]
    folder: Path

    def output(self, rank: int) -> str:
        return (self.folder / f"output-{rank}").read_text()


class Launcher:
    """Runs scripts, one launch after the other."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._launches = 0

    def run(self, script: Path, spec: str | None, workers: int, *arguments: str) -> Ended:
        """Run a script with a strategy, or alone if the strategy is None."""
        ranks = 0 if spec is None else len(parse(spec).roles(workers))
        settings = {"strategy": spec, "threads": 1, "deadline_s": PATIENCE_S}
        self._launches += 1
        where = self._folder / f"{self._launches}"
        words = [ranks, free_port(), settings, str(where), str(script), arguments]
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(words) + "\n")
        stdin.flush()
        return Ended(json.loads(stdout.readline()), where)


@contextlib.contextmanager
def launcher(folder: Path) -> Iterator[Launcher]:
    """A process that has imported torch, and forks."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Launcher(process, folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
