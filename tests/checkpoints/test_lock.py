"""One run at a time writes to a checkpoint folder; its lock ends with its process."""

import errno
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest
from checkpointed_runs import CheckpointedRun, the_task
from processes import PATIENCE_S, has_signs, is_alive
from refusals import has, refused
from tasks import WORLDS, a_task, simulated

import paceline as pl
from paceline.checkpoints import Store

ENDLESS = 10**6

# Locks the folder, forks a child that lives on, and names it.
HOLDER = """
import os, signal, sys
from paceline.checkpoints import Store
Store(sys.argv[1]).lock()
child = os.fork()
if not child:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder's lock, and the child that it forked afterwards."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert has_signs(process.stdout, PATIENCE_S)
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.communicate()


def owner_of(pid):
    return f"process {pid} on host {socket.gethostname()}"


def test_a_folder_that_another_process_has_locked_is_refused_with_its_name(holder, tmp_path):
    with refused("checkpoint", has(owner_of(holder[0].pid))):
        Store(tmp_path).lock()


def test_a_lock_ends_with_its_process_though_a_child_of_it_lives_on(holder, tmp_path):
    process, child = holder
    process.kill()
    process.wait()
    assert is_alive(child)
    store = Store(tmp_path)
    store.lock()
    store.unlock()


def test_a_lock_leaves_nothing_in_the_folder(tmp_path):
    store = Store(tmp_path)
    store.lock()
    assert os.listdir(tmp_path) == [".lock"]
    store.unlock()
    store.unlock()
    assert os.listdir(tmp_path) == []


def test_processes_of_a_launch_look_at_the_lock_before_the_first_of_them_takes_it(holder, tmp_path):
    with refused("checkpoint", has(owner_of(holder[0].pid))):
        Store(tmp_path).check_unlocked("10.0.0.1:29500")
    store = Store(tmp_path / "x")
    store.check_writable()
    store.check_unlocked("10.0.0.1:29500")
    store.lock("10.0.0.1:29500")
    store.check_unlocked("10.0.0.1:29500")  # of a later run, in another process of the launch
    with refused("checkpoint", has(owner_of(os.getpid()))):
        store.check_unlocked("10.0.0.2:29500")
    store.unlock()


def test_two_runs_of_one_process_do_not_share_a_folder(tmp_path):
    first, second = Store(tmp_path), Store(tmp_path)
    first.lock()
    with refused("checkpoint", has(owner_of(os.getpid()))):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_folder_that_vanished_is_unlocked(tmp_path, file_descriptors):
    before = file_descriptors()
    store = Store(tmp_path / "x")
    store.check_writable()
    store.lock()
    store.folder.rename(tmp_path / "elsewhere")
    store.unlock()
    assert file_descriptors() == before


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch, caplog):
    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = pl.train(a_task(), "single", simulated(1), steps=2, checkpoint=tmp_path)
    assert run.steps == 2
    assert f"{tmp_path} has no file locks (No locks available)" in caplog.text


def test_a_second_run_in_the_folder_is_refused_and_the_first_goes_on(tmp_path):
    with CheckpointedRun(tmp_path, steps=ENDLESS) as first:
        first.wait_for_checkpoint()
        for resume in (False, True, "must"):
            for cluster in (WORLDS["local"](2), WORLDS["simulated"](2)):
                with refused("checkpoint", has(owner_of(first.pid))):
                    pl.train(the_task(), "all-reduce", cluster, steps=2, checkpoint=tmp_path, resume=resume)
        first.wait_for_checkpoint(after=first.newest)
        first.send(signal.SIGTERM)
        code, said = first.end()
    assert code == 128 + signal.SIGTERM, said


def test_a_run_can_begin_as_soon_as_the_driver_before_it_was_killed(tmp_path):
    with CheckpointedRun(tmp_path, steps=ENDLESS) as first:
        first.wait_for_checkpoint()
        for rank in first.ranks():
            os.kill(rank, signal.SIGSTOP)  # they are slow to end
        first.kill("the driver")
        first.end()
        store = Store(tmp_path)
        store.lock()
        store.unlock()


def test_a_refused_run_leaves_the_folder_unlocked(tmp_path):
    pl.train(a_task(), "single", simulated(1), steps=2, checkpoint=tmp_path)
    with refused("checkpoint"):
        pl.train(a_task(), "single", simulated(1), steps=2, checkpoint=tmp_path)
    assert pl.train(a_task(), "single", simulated(1), steps=3, checkpoint=tmp_path, resume=True).steps == 3
