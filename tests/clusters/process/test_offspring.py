import subprocess
import sys

from processes import PATIENCE_S, is_alive, wait_until

FAMILY = """
import os, sys, time
from paceline.clusters.process.offspring import dies_with_parent
parent = os.getpid()
if os.fork() == 0:
    assert dies_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(1000)
time.sleep(1000)
"""


def test_a_child_is_killed_when_its_parent_is():
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not is_alive(child), "the child has ended")


def test_a_child_whose_parent_has_ended_already_is_told():
    program = "from paceline.clusters.process.offspring import *; print(dies_with_parent(1 << 30))"
    ran = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    assert ran.stdout == "False\n"
