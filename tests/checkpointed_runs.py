"""A run with checkpoints in a separate process that a test can kill: the script, and a class that watches it."""

import os
import signal
import subprocess
import sys
import time

import torch
from processes import PATIENCE_S, children, wait_until
from torch import nn

import paceline as pl
from paceline.checkpoints import Store

__all__ = ["STEPS", "CheckpointedRun", "the_task"]

STEPS = 300

SCRIPT = """
import sys
sys.path[:0] = [sys.argv[2]]
import paceline as pl
from checkpointed_runs import the_task

if __name__ == "__main__":
    pl.train(
        the_task(), sys.argv[3], pl.Local(workers=2, threads=1), steps=int(sys.argv[4]),
        checkpoint=sys.argv[1], checkpoint_every=5, resume=True,
    )
"""


def the_task():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 16, dtype=torch.float64, generator=generator)
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1)).double(),
        data=(inputs, inputs.sum(dim=1, keepdim=True)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=0.01),
        batch_size=16,
    )


class CheckpointedRun:
    """The script, run once. As a context manager it leaves no process behind."""

    def __init__(self, folder, spec="all-reduce", steps=STEPS):
        self._store = Store(folder)
        command = [sys.executable, "-c", SCRIPT, str(folder), os.path.dirname(__file__), spec, str(steps)]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.kill("everything")
        self._process.communicate()

    @property
    def pid(self):
        return self._process.pid

    @property
    def newest(self):
        there = self._store.checkpoints()
        return there[-1].step if there else 0

    @property
    def has_ended(self):
        return self._process.poll() is not None

    def wait_for_checkpoint(self, after=0):
        """Wait until there is a checkpoint of a later step than this, or the run has ended."""
        wait_until(lambda: self.newest > after or self.has_ended, f"a checkpoint after step {after}")

    def ranks(self):
        """The workers' processes: children of the fork server, which is the driver's child."""
        return [rank for server in children(self._process.pid) for rank in children(server)]

    def kill(self, whom):
        if whom == "a rank":
            for rank in self.ranks()[:1]:
                os.kill(rank, signal.SIGKILL)
            return
        doomed = self.ranks() if whom == "everything" else []
        for pid in (*doomed, self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def send(self, signum):
        self._process.send_signal(signum)

    def end(self):
        """Wait for the end. Return the exit code and the output."""
        _, said = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, said

    def pause(self, seconds):
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not self.has_ended:
            time.sleep(0.001)
