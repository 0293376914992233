"""Ctrl-C in a process that was launched."""

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
    import pathlib, signal, sys
    import paceline as pl

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script in the background would ignore it

    async def program(ctx):
        pathlib.Path(sys.argv[1]).touch()
        for _ in range(10**9):
            await ctx.sleep(0.01)

    try:
        pl.run_program(program, pl.Launched(deadline_s=1000.0))
    except KeyboardInterrupt:
        sys.exit(7)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listens(port):
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@pytest.fixture
def launch(tmp_path):
    """Start one process of a launch, with the environment that torchrun gives it."""
    started = []

    def start(rank, ranks, port):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        words = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "begun")]
        started.append(subprocess.Popen(words, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_an_interrupt_ends_the_wait_for_processes_that_do_not_come(launch):
    port = free_port()
    process = launch(0, 2, port)
    wait_until(lambda: listens(port), "the first process waits for the second")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 7


def test_an_interrupt_ends_a_program_that_waits(launch, tmp_path):
    process = launch(0, 1, free_port())
    wait_until((tmp_path / "begun").exists, "the program runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 7
