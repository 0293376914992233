"""Launched processes write one checkpoint together, and resume from the same one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
import torch
from clusters.launched.scripts import free_port, the_task, write_scripts
from processes import PATIENCE_S, wait_until
from tasks import WORLDS

import paceline as pl
from paceline.checkpoints import Store

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import paceline as pl
from the_task import task

if __name__ == "__main__":
    folder, steps, spec = sys.argv[1:]
    cluster = pl.Launched(deadline_s=60.0, threads=1)
    run = pl.train(task(), spec, cluster, steps=int(steps), checkpoint=folder, checkpoint_every=3, resume=True)
    print(json.dumps([record.loss for record in run.history]), flush=True)
"""


@contextlib.contextmanager
def launched(scripts, *words):
    """Two processes, which are ended afterwards."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "keep.py", *map(str, words)],
            cwd=scripts,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes):
    """Return the stdout and stderr of each process, when all have ended."""
    return [process.communicate(timeout=4 * PATIENCE_S) for process in processes]


def launch(scripts, *words):
    with launched(scripts, *words) as processes:
        return [json.loads(said) for said, _ in ends(processes)]


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "map-reduce"])
def test_launched_processes_go_on(spec, tmp_path):
    scripts = write_scripts(tmp_path)
    (scripts / "keep.py").write_text(SCRIPT)
    launch(scripts, tmp_path / "kept", 5, spec)
    one, other = launch(scripts, tmp_path / "kept", 9, spec)
    workers = 1 if spec == "map-reduce" else 2
    plain = pl.train(the_task(torch.float64), spec, WORLDS["simulated"](workers), steps=9)
    assert one == other == [record.loss for record in plain.history]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir())[-1] == "step-00000009"


def test_a_second_launch_in_the_folder_of_the_first_is_refused_by_every_process(tmp_path):
    scripts, folder = write_scripts(tmp_path), tmp_path / "kept"
    (scripts / "keep.py").write_text(SCRIPT)
    with launched(scripts, folder, 1_000_000, "all-reduce:algorithm=ring") as first:
        wait_until(lambda: Store(folder).checkpoints(), "the first launch writes a checkpoint")
        with launched(scripts, folder, 9, "all-reduce:algorithm=ring") as second:
            complaints = [complaint for _, complaint in ends(second)]
        assert all(process.poll() is None for process in first)
    for complaint in complaints:
        assert f"no other run uses, but got '{folder}, which process {first[0].pid} on host" in complaint
