"""Scripts as users write, run and interrupt them, each in a separate process."""

import os
import signal
import subprocess
import sys
import uuid

import pytest
from processes import PATIENCE_S, marked, wait_until

# No `if __name__ == "__main__"`, and everything defined in the script itself.
SCRIPT = """
import torch
from torch import nn
import paceline as pl

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)

def loss(outputs, targets):
    global said
    if not said:
        print("a worker computes", flush=True)
        said = True
    return nn.functional.mse_loss(outputs, targets)

said = False
x = torch.randn(64, 3)
task = pl.Task(model=lambda: Net(), data=lambda: (x, x.sum(1, keepdim=True)), loss=loss,
               optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=16)
run = pl.train(task, "all-reduce", pl.Local(workers=2), steps=3)
print("trained for", run.steps, "steps", type(run.model).__name__, flush=True)
pl.train(task, "all-reduce", pl.Local(workers=2), steps=10**7)
"""


class Script:
    """The script in a separate process group. Its processes are found by a mark in their environment."""

    def __init__(self, folder):
        path = folder / "script.py"
        path.write_text(SCRIPT)
        self.mark = f"PACELINE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            env=os.environ | {name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def read_until(self, word):
        """Return the output up to the line with this word."""
        text = ""
        while word not in text:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            text += line
        return text

    def ends(self):
        """Return the text of stdout and stderr."""
        return self.process.communicate(timeout=PATIENCE_S)

    def assert_nothing_is_left(self):
        wait_until(lambda: not marked(self.mark), "all of the script's processes are gone")


@pytest.fixture
def script(tmp_path):
    script = Script(tmp_path)
    yield script
    script.process.kill()
    script.process.communicate()


def test_a_plain_script_trains_prints_and_is_ended_by_ctrl_c_with_all_its_processes(script):
    first_run = script.read_until("trained for 3 steps Net")
    assert first_run.count("a worker computes") == 2
    script.read_until("a worker computes")
    assert len(marked(script.mark)) == 4, "the driver, its fork server, two workers"
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, errors = script.ends()
    assert script.process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1
    script.assert_nothing_is_left()


def test_a_driver_that_is_killed_takes_its_processes_along(script):
    script.read_until("trained for")
    script.read_until("a worker computes")
    assert len(marked(script.mark)) == 4
    script.process.kill()
    script.ends()
    script.assert_nothing_is_left()
