"""Processes that Open MPI's mpirun has started train together: on one host, and on two from a third."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from clusters.launched.scripts import said, the_task, write_scripts
from clusters.namespaces import Host, Hosts, can_make_hosts, several_hosts
from processes import PATIENCE_S, marked, wait_until

import paceline as pl


def why_not() -> str:
    """Return the reason why mpirun cannot be tested here. Empty if it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun: install Debian's openmpi-bin"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return "" if "Open MPI" in version else "mpirun is not Open MPI's"


pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.xdist_group("mpirun"),  # one launch for several tests
]

STRATEGIES = ("all-reduce:algorithm=ring", "sync")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KEPT = ("PYTHONPATH", "OMP_NUM_THREADS")  # variables of this environment for ranks on other hosts


def mpirun(*words: str, before: Sequence[str] = (), **env: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    environment = {**outside, **AS_ROOT, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), **env}
    return subprocess.run(
        [*before, "mpirun", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE_S,
        check=False,
    )


def python_path() -> str:
    return os.pathsep.join(filter(None, sys.path))


def script(folder: Path, *strategies: str) -> list[str]:
    return ["-wdir", str(folder), sys.executable, "train.py", str(folder), *strategies]


# One host


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each strategy by 2 processes."""
    folder = write_scripts(tmp_path_factory.mktemp("mpirun"))
    done = mpirun("--oversubscribe", "-np", "2", *script(folder, *STRATEGIES))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(0, 2), (1, 1)], ids=STRATEGIES)
def test_processes_of_mpirun_give_the_weights_of_local_ones_bit_for_bit(
    here: Path, number: int, workers: int
):
    expected = pl.train(the_task(), STRATEGIES[number], pl.Local(workers=workers, threads=1), steps=8)
    for run in said(here, number, ranks=2):
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
        assert run["bytes"] == expected.bytes_sent
        assert run["environment"]["hosts"] == f"{socket.gethostname()}: 0-1"  # type: ignore[index]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_and_nothing_is_left(tmp_path: Path):
    folder = write_scripts(tmp_path)
    mark = f"paceline-mpirun-{os.getpid()}"
    words = ("--oversubscribe", "-np", "3", *script(folder, "all-reduce:algorithm=ring"))
    done = mpirun(*words, DIES="1 at 4", MARK=mark)
    assert done.returncode != 0
    assert "exited on signal 9" in done.stderr
    wait_until(lambda: marked(mark) == [], "the processes of the job are gone")


# Two hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if reason := can_make_hosts():
        pytest.skip(f"no hosts here: {reason}")
    with several_hosts(2, bare=1, cpus=0) as made:
        yield made


def launch_agent(hosts: Sequence[Host], folder: Path) -> Path:
    """Program that mpirun calls instead of ssh, with a host's address and a command."""
    cases = "\n".join(f'{host.address}) shift; exec {" ".join(host.enter)} sh -c "$*" ;;' for host in hosts)
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\necho "no host $1" >&2\nexit 1\n')
    agent.chmod(0o755)
    return agent


def mpirun_from(login: Host, agent: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The agent knows hosts by processes as this machine counts them: so without --pid and --mount.
    before = ["nsenter", "--target", str(login.inside), "--net", "--uts"]
    kept = [word for name in KEPT for word in ("-x", name)]
    return mpirun("--mca", "plm_rsh_agent", str(agent), *kept, *words, before=before)


@pytest.mark.slow
def test_two_hosts_give_the_weights_of_two_simulated_ones_bit_for_bit(hosts: Hosts, tmp_path: Path):
    folder = write_scripts(tmp_path)
    places = ",".join(f"{host.address}:2" for host in hosts.hosts)
    meeting = ("-x", f"MASTER_ADDR={hosts.hosts[0].address}")
    words = ("-np", "4", "-H", places, *meeting, *script(folder, "all-reduce", "async"))
    done = mpirun_from(hosts.bare[0], launch_agent(hosts.hosts, folder), *words)
    assert done.returncode == 0, done.stderr
    expected = pl.train(
        the_task(),
        "all-reduce:algorithm=hierarchical",
        pl.Simulated(workers=4, hosts=2, threads=1),
        steps=8,
    )
    for run in said(folder, 0, ranks=4):
        assert torch.equal(torch.tensor(run["parameters"], dtype=torch.float64), expected.parameters)
        assert run["environment"]["hosts"] == "host0: 0-1; host1: 2-3"  # type: ignore[index]
        assert run["environment"]["link"] == "encrypted TCP"  # type: ignore[index]
    assert [run["steps"] for run in said(folder, 1, ranks=4)] == [8, 8, 8, 8]


@pytest.mark.slow
def test_hosts_that_do_not_know_where_to_meet_are_told_what_to_set(hosts: Hosts, tmp_path: Path):
    places = ",".join(f"{host.address}:1" for host in hosts.hosts)
    words = ("-np", "2", "-H", places, *script(write_scripts(tmp_path), "all-reduce"))
    done = mpirun_from(hosts.bare[0], launch_agent(hosts.hosts, tmp_path), *words)
    assert done.returncode != 0
    assert "MASTER_ADDR must be set if processes are on several hosts" in done.stderr
    assert "mpirun -x MASTER_ADDR=" in done.stderr
