"""Scripts as users write them, run as users run them: in a process of their own, and ended as users end them."""

import os
import signal
import subprocess
import sys
import uuid

import pytest
from processes import PATIENCE_S, marked, wait_until

# No `if __name__ == "__main__"`, and everything defined in the script itself.
SCRIPT = """
import sys
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
run = pl.train(task, "all-reduce", pl.Local(workers=2), steps=int(sys.argv[1]))
print("trained for", run.steps, "steps", type(run.model).__name__)
"""
FOR_EVER = 10**7


class Script:
    """The script in a process group of its own, whose processes can be found by a mark in their environment."""

    def __init__(self, folder, steps):
        path = folder / "script.py"
        path.write_text(SCRIPT)
        self.mark = f"PACELINE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, str(path), str(steps)],
            env=os.environ | {name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_it_trains(self):
        assert self.process.stdout.readline().startswith("a worker computes")
        assert len(marked(self.mark)) == 4, "the driver, its fork server, two workers"

    def ends(self):
        """What it wrote to its two outputs."""
        return self.process.communicate(timeout=PATIENCE_S)

    def assert_nothing_is_left(self):
        wait_until(lambda: not marked(self.mark), "all of the script's processes are gone")


@pytest.fixture
def script(tmp_path, request):
    script = Script(tmp_path, request.param)
    yield script
    script.process.kill()
    script.process.communicate()


@pytest.mark.parametrize("script", [3], indirect=True)
def test_a_plain_script_trains_and_what_its_workers_print_appears(script):
    output, errors = script.ends()
    assert script.process.returncode == 0, errors
    assert output.count("a worker computes") == 2
    assert output.endswith("trained for 3 steps Net\n")
    assert errors == ""
    script.assert_nothing_is_left()


@pytest.mark.parametrize("script", [FOR_EVER], indirect=True)
def test_ctrl_c_ends_a_script_and_all_its_processes(script):
    script.wait_until_it_trains()
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, errors = script.ends()
    assert script.process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    script.assert_nothing_is_left()


@pytest.mark.parametrize("script", [FOR_EVER], indirect=True)
def test_a_driver_that_is_killed_takes_its_processes_along(script):
    script.wait_until_it_trains()
    script.process.kill()
    script.ends()
    script.assert_nothing_is_left()
