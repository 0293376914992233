"""`paceline train --spark` on a private Spark, and Ctrl-C: no process remains."""

import os
import signal
import subprocess
import sys

import pytest
from clusters.spark.executors import in_one_process, needs_spark
from processes import PATIENCE_S, marked, wait_until

pytestmark = [in_one_process, pytest.mark.slow, needs_spark]

TASK = """
    import pathlib, torch
    import paceline as pl

    def loss(outputs, targets):
        pathlib.Path({begun!r}).touch()
        return torch.nn.functional.mse_loss(outputs, targets)

    def task():
        inputs = torch.arange(32.0).reshape(16, 2) / 32
        return pl.Task(
            model=lambda: torch.nn.Linear(2, 1),
            data=(inputs, inputs.sum(1, keepdim=True)),
            loss=loss,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            batch_size=8,
        )
"""


def test_ctrl_c_ends_the_run_and_all_processes(tmp_path):
    begun, file, mark = tmp_path / "begun", tmp_path / "task.py", f"SPARK_TEST_OF={os.getpid()}"
    file.write_text("\n".join(line[4:] for line in TASK.format(begun=str(begun)).splitlines()))
    words = [sys.executable, "-m", "paceline", "train", str(file), "--spark", "--workers", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), mark.split("=")[0]: mark.split("=")[1]}
    words += ["--steps", str(10**7), "--deadline", "300s"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: begun.exists() or process.poll() is not None, "a rank computes")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, output.decode()
    wait_until(lambda: not marked(mark), "all processes have ended")
