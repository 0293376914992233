"""Each leftover of a run is reported once."""

import os
import subprocess
import sys

PROGRAM = """
import os, subprocess, sys, tempfile
from pathlib import Path
from soak.leftovers import Leftovers
leftovers = Leftovers(grace_s=0.2)
for cluster in ("memory", "ray"):
    assert leftovers.look(cluster) == []
"""


def told(program):
    """Return the report of a separate process, because the descriptors and children of this one change."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.splitlines()


def test_a_run_that_leaves_nothing_is_told_nothing():
    assert told("print(leftovers.look('memory'))") == ["[]"]


def test_a_descriptor_that_stays_open_is_told_once():
    first, second = told(
        "fd = os.memfd_create('paceline-x'); print(leftovers.look('ray'), leftovers.look('ray'), sep='\\n')"
    )
    assert "1 of /memfd:paceline-x (deleted)" in first
    assert second == "[]"


def test_what_ray_itself_leaves_open_is_not_told():
    assert told("ends = os.pipe(); print(leftovers.look('ray'))") == ["[]"]
    assert "2 of pipe" in told("ends = os.pipe(); print(leftovers.look('memory'))")[0]


def test_a_process_that_goes_on_is_told():
    program = """
child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
print(leftovers.look("memory"))
child.kill()
child.wait()
"""
    assert "left running: process" in told(program)[0]


def test_a_folder_of_paceline_that_stays_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = "Path(tempfile.gettempdir(), 'paceline-ray-x').mkdir(); print(leftovers.look('memory'))"
    assert told(program) == ["['left in the temporary folder: paceline-ray-x']"]
