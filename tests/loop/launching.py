"""Scripts with their own loop, in processes that are forked from one that has imported torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import PATIENCE_S

from paceline.strategies import parse

__all__ = ["Ended", "free_port", "launch", "launch_all"]

# Each launch is a list: ranks, port, settings, folder, script, arguments. Exit codes are printed, output is in files.
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

for ranks, port, *rest in json.loads(sys.argv[1]):
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


def launch_all(folder: Path, script: Path, launches: list[tuple[str | None, int, list[str]]]) -> list[Ended]:
    """Run a script once for each triple of a strategy (None: alone), a number of workers, and arguments."""
    words, ended = [], []
    for number, (spec, workers, arguments) in enumerate(launches):
        ranks = 0 if spec is None else len(parse(spec).roles(workers))
        settings = {"strategy": spec, "threads": 1, "deadline_s": PATIENCE_S}
        where = folder / f"{number}"
        words.append([ranks, free_port(), settings, str(where), str(script), arguments])
        ended.append(where)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, json.dumps(words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=(4 + len(launches)) * PATIENCE_S,
        check=True,
    )
    codes = [json.loads(line) for line in done.stdout.splitlines()]
    return [Ended(*pair) for pair in zip(codes, ended, strict=True)]


def launch(folder: Path, script: Path, spec: str, workers: int, *arguments: str) -> Ended:
    (ended,) = launch_all(folder, script, [(spec, workers, list(arguments))])
    return ended


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
