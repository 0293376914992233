"""The dump of a hanging process shows its position and does not end the process."""

import subprocess
import sys

from processes import is_alive

from soak.dump import STACKS, dump

SHOWS_ITS_STACKS = f"""
import faulthandler, os, signal, sys
file = os.fdopen(os.memfd_create({STACKS!r}), "w")
faulthandler.register(signal.SIGUSR2, file=file)
def waits_for_ever():
    print("there", flush=True)
    while True:
        signal.pause()
waits_for_ever()
"""
HAS_NO_HANDLER = "import signal; print('there', flush=True); signal.pause()"


def test_stacks_of_those_that_show_them_and_a_file_for_each(tmp_path):
    programs = [
        subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        for text in (SHOWS_ITS_STACKS, HAS_NO_HANDLER)
    ]
    try:
        for program in programs:
            program.stdout.readline()
        dump([program.pid for program in programs], tmp_path)
        shown, other = ((tmp_path / f"{program.pid}.txt").read_text() for program in programs)
        assert "in waits_for_ever" in shown
        assert "== status\nName:\tpython" in other
        assert all(is_alive(program.pid) for program in programs)
    finally:
        for program in programs:
            program.kill()
            program.wait()
            program.stdout.close()
