"""`paceline run`, torchrun and mpirun start scripts with their own loop. Nothing is left when they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clusters.ray_hosts import needs_ray
from loop.launching import free_port
from loop.scripts import weights, write_script
from processes import PATIENCE_S, wait_until

import paceline as pl

EXAMPLES = Path(__file__).parents[2] / "examples"
PACELINE = [str(Path(sys.executable).with_name("paceline")), "run"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SLEEPER = """
import os, sys, time
from pathlib import Path
import torch, paceline as pl
model = torch.nn.Linear(2, 1)
model, optimizer = pl.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
while True:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    Path(f"pid-{pl.rank()}").write_text(str(os.getpid()))
    time.sleep(0.01)
"""


def run(words, folder):
    return subprocess.run(
        words,
        check=False,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE_S,
    )


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("own-loop"))


@pytest.fixture(scope="module")
def alone(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert run([sys.executable, script], folder).returncode == 0
    return weights(folder)


def launchers():
    yield "paceline", [*PACELINE, "--workers", "2", "--strategy", "sync"]
    yield "tcp", [*PACELINE, "--workers", "2", "--link", "tcp"]
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    yield "torchrun", [torchrun, "--nproc-per-node", "2", "--master-port", str(free_port())]
    if shutil.which("mpirun"):
        yield "mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in launchers()])
def test_every_launcher_gives_the_weights_of_the_script_alone(words, script, alone, tmp_path):
    done = run([*words, str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(weights(tmp_path), alone, rtol=0, atol=1e-12)


@needs_ray
def test_ray_gives_the_weights_of_the_script_alone(script, alone, tmp_path):
    done = run([*PACELINE, "--workers", "2", "--strategy", "sync", "--ray", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(weights(tmp_path), alone, rtol=0, atol=1e-12)


@needs_ray
def test_ray_shows_a_failed_rank(script, tmp_path):
    done = run([*PACELINE, "--workers", "2", "--ray", str(script), "raise"], tmp_path)
    assert done.returncode == 1
    assert "LookupError: a broken sample" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "fact"),
    [(["--link", "udp"], "shared-memory"), (["--workers", "0"], "1"), (["--ray", "nonsense"], "address")],
)
def test_options_that_cannot_be_right_are_refused(words, fact, script, tmp_path):
    done = run([*PACELINE, *words, str(script)], tmp_path)
    assert done.returncode == 2
    assert fact in done.stderr


def test_the_run_is_saved_with_trace_and_report(script, tmp_path):
    done = run([*PACELINE, "--workers", "2", "--slow", "1:3x", "--out", "saved", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert pl.Run.load(tmp_path / "saved").steps == 14
    assert {"trace.json", "report.html"} <= {path.name for path in (tmp_path / "saved").iterdir()}


def test_a_failed_rank_is_shown_with_its_number(script, tmp_path):
    done = run([*PACELINE, "--workers", "2", str(script), "raise"], tmp_path)
    assert done.returncode == 1
    assert "LookupError: a broken sample" in done.stderr


def test_ctrl_c_leaves_no_process(tmp_path):
    (tmp_path / "train.py").write_text(SLEEPER)
    words = [*PACELINE, "--workers", "2", "train.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as process:
        files = [tmp_path / f"pid-{rank}" for rank in range(2)]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), "both workers train")
        process.send_signal(signal.SIGINT)
        assert process.wait(4 * PATIENCE_S) == 130
    for file in files:
        assert not Path(f"/proc/{file.read_text()}").exists()


@pytest.mark.parametrize("name", ["plain", "ddp", "accelerate"])
def test_scripts_of_other_libraries_give_the_weights_of_plain_pytorch(name, tmp_path):
    folder = EXAMPLES / "own_loops"
    expected, found = tmp_path / "plain", tmp_path / "paceline"
    expected.mkdir()
    found.mkdir()
    assert run([sys.executable, str(folder / "plain.py")], expected).returncode == 0
    done = run([*PACELINE, "--workers", "3", str(folder / f"{name}_paceline.py")], found)
    assert done.returncode == 0, done.stderr
    for one, other in zip(
        *(torch.load(each / "model.pt").values() for each in (expected, found)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_lightning_module_trains_as_a_task(tmp_path):
    done = run([sys.executable, str(EXAMPLES / "own_loops" / "lightning_paceline.py")], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("name", ["plain", "ddp", "accelerate", "lightning"])
def test_moving_a_script_changes_at_most_8_lines(name):
    before, after = ((EXAMPLES / "own_loops" / f"{name}{end}.py").read_text() for end in ("", "_paceline"))
    assert len(set(after.splitlines()) - set(before.splitlines())) <= 8
