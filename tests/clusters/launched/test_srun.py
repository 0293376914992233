"""Processes that Slurm's srun has started train together: a Slurm of one node, with daemons of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from clusters.launched.scripts import free_port, said, the_task, write_scripts
from processes import PATIENCE_S, wait_until

import paceline as pl

DAEMONS = ("munged", "slurmctld", "slurmd")
PROGRAMS = (*DAEMONS, "srun", "sinfo")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
WHY_NOT = (
    f"no {', '.join(MISSING)}: install Debian's munge, slurmctld, slurmd and slurm-client"
    if MISSING
    else ("" if os.geteuid() == 0 else "slurmd needs root")
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.xdist_group("srun"),  # one Slurm for several tests
]

CONFIGURATION = """
ClusterName=one
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
NodeName={name} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def environment(folder):
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM"))}
    path = f"{os.environ['PATH']}:/usr/sbin"
    python_path = os.pathsep.join(filter(None, sys.path))
    own = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path, "PYTHONPATH": python_path}
    return {**outside, **own, "OMP_NUM_THREADS": "1"}


def run(folder, *words):
    return subprocess.run(
        words, env=environment(folder), capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm whose only node is this machine. All its files are in the folder that this returns."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    name, ports = socket.gethostname().partition(".")[0], (free_port(), free_port())
    text = CONFIGURATION.format(name=name, folder=folder, ports=ports, cores=os.cpu_count())
    (folder / "slurm.conf").write_text(text)
    files = {each: f"--{each}-file={folder}/munge.{each}" for each in ("key", "pid", "log", "seed")}
    commands = (
        ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files.values()),
        ("slurmctld", "-D"),
        ("slurmd", "-D"),
    )
    started = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as output:
                started.append(
                    subprocess.Popen(command, env=environment(folder), stdout=output, stderr=output)
                )
            if command[0] == "munged":
                wait_until((folder / "munge.socket").exists, "munged listens")
        wait_until(lambda: "idle" in run(folder, "sinfo", "--noheader").stdout, "the node of Slurm is idle")
        yield folder
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(PATIENCE_S)


def test_processes_of_srun_give_the_weights_of_local_ones_bit_for_bit(slurm, tmp_path):
    folder, strategy = write_scripts(tmp_path), "all-reduce:algorithm=ring"
    words = ("srun", "--overcommit", "--ntasks=2", "--chdir", str(folder), sys.executable, "train.py")
    done = run(slurm, *words, str(folder), strategy)
    assert done.returncode == 0, done.stderr
    expected = pl.train(the_task(), strategy, pl.Local(workers=2, threads=1), steps=8)
    for found in said(folder, 0, ranks=2):
        assert torch.equal(torch.tensor(found["parameters"], dtype=torch.float64), expected.parameters)
        assert found["environment"]["hosts"] == f"{socket.gethostname()}: 0-1"
