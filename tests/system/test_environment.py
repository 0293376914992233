import os
import shlex
import subprocess
import sys

import torch

import paceline
from paceline.system.environment import available_bytes, snapshot


def test_the_facts_are_those_of_this_process():
    facts = snapshot()
    assert facts["paceline"] == paceline.__version__
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"] == torch.__version__
    assert facts["cores"] == str(len(os.sched_getaffinity(0)))
    assert all(isinstance(fact, str) and fact for fact in facts.values())


def command_of(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


def test_the_command_can_be_typed_again(tmp_path):
    script = tmp_path / "my script.py"
    script.write_text("from paceline.system.environment import snapshot\nprint(snapshot()['command'])\n")
    command = command_of(str(script), "--name", "two words")
    assert shlex.split(command) == ["python", str(script), "--name", "two words"]


def test_the_command_line_tool_goes_by_its_name(tmp_path):
    script = tmp_path / "paceline"
    script.write_text("from paceline.system.environment import snapshot\nprint(snapshot()['command'])\n")
    assert command_of(str(script), "train", "task.py") == "paceline train task.py"


def test_the_facts_need_no_torch():
    statement = "import sys, paceline.system.environment as e; e.snapshot(); print('torch' in sys.modules)"
    assert command_of("-c", statement) == "False"


def test_this_machine_has_memory():
    assert available_bytes() > 0
