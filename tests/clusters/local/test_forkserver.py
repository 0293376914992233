"""The fork server ends with its driver, even if the driver has forked. A server that is out of sync is replaced."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid

import pytest
from processes import fork_servers, is_alive, marked, opened, wait_until
from refusals import raised
from tasks import a_task

import paceline as pl
from paceline.clusters.local import forkserver
from paceline.errors import RunError

LONG_S = 300  # a slow machine imports torch several times in it


def train(**changes):
    return pl.train(a_task(), "all-reduce", pl.Local(workers=2), **({"steps": 2} | changes))


def sockets(pid):
    return {name for name in opened(pid) if name.startswith("socket:")}


def forked_sockets():
    """The sockets of a child that this process forks now."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"!")
        signal.pause()
        os._exit(0)
    try:
        os.read(reading, 1)  # the child has returned from its fork
        return sockets(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


# Processes that the user forks


def test_a_child_that_a_user_forks_holds_no_channel_to_the_server_or_to_a_rank():
    before, seen = sockets(os.getpid()), []

    def fork_in_a_run(progress):
        seen.append((sockets(os.getpid()), forked_sockets()))
        raise StopIteration

    with pytest.raises(StopIteration):
        train(steps=10**6, progress=fork_in_a_run)
    ((own, inherited),) = seen
    assert len(own - before) >= 2, "the channels of two ranks, and that of the server if it is new"
    assert not inherited
    assert not forked_sockets()


def test_a_child_that_a_rank_forks_holds_no_channel_to_the_driver():
    async def program(ctx):
        return [len(sockets(os.getpid())), len(forked_sockets())]

    assert pl.run_program(program, pl.Local(workers=1)).results == [[1, 0]]


# A server that stops


def end_server():
    if forkserver.ForkServer._current is not None:
        forkserver.ForkServer._current._end()


@pytest.fixture
def short_patience(monkeypatch):
    """With a server that has already started, so that a short timeout is enough."""
    train()
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.5)


def test_a_stopped_server_is_killed_and_replaced(short_patience):
    def stop_server(progress):
        os.kill(fork_servers()[0], signal.SIGSTOP)
        raise StopIteration

    stopped = fork_servers()
    with pytest.raises(StopIteration):
        train(steps=10**6, progress=stop_server)
    wait_until(lambda: not is_alive(stopped[0]), "the stopped server is gone")
    assert fork_servers() == []


def test_a_server_that_does_not_answer_ends_the_run_with_an_error(short_patience):
    os.kill(fork_servers()[0], signal.SIGSTOP)
    with raised(RunError, "0.5 s"):
        train()
    assert fork_servers() == []


def test_an_interrupt_while_a_server_starts_does_not_wait_for_it():
    """The server is stopped, so waiting for it would never end."""
    end_server()

    def stop_and_interrupt():
        wait_until(fork_servers, "a server is there")
        os.kill(fork_servers()[0], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_and_interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train()
    thread.join()
    assert fork_servers() == []


# Drivers


class Driver:
    """A script in a process of its own. Its processes are found by a mark in their environment."""

    def __init__(self, folder, body):
        path = folder / "driver.py"
        path.write_text(PREFACE + textwrap.dedent(body))
        self.mark = f"PACELINE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            env=os.environ | {name: value, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self):
        out, err = self.process.communicate(timeout=LONG_S)
        assert self.process.returncode == 0, err
        return out


@pytest.fixture
def start(tmp_path):
    started = []

    def start(body):
        started.append(Driver(tmp_path, body))
        return started[-1]

    yield start
    for driver in started:
        for pid in marked(driver.mark):
            os.kill(pid, signal.SIGKILL)
        driver.process.communicate()


PREFACE = """
import gc, os, random, signal, threading, time
import torch
import paceline as pl
from processes import fork_servers, wait_until, workers
from tasks import a_task, simulated

def train(**changes):
    return pl.train(a_task(), "all-reduce", pl.Local(workers=2), **({"steps": 2} | changes))

def opened():
    gc.collect()  # what an interrupt unwinds may be in a circle
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(name) for name in names if os.path.lexists(name))

"""


@pytest.mark.slow
def test_a_killed_driver_takes_a_stopped_server_along_though_its_child_lives_on(start):
    driver = start("""
        train()
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(fork_servers()[0], signal.SIGSTOP)
        print(child, flush=True)
        signal.pause()
    """)
    child = int(driver.process.stdout.readline())
    driver.process.kill()
    wait_until(lambda: marked(driver.mark) == [child], "all but the driver's own child are gone")


@pytest.mark.slow
def test_a_server_outlives_the_thread_that_started_it_and_its_driver_ends_though_a_child_lives_on(start):
    driver = start("""
        async def program(ctx):
            print("printed, not flushed")

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        first = fork_servers()
        pl.run_program(program, pl.Local(workers=2))
        assert fork_servers() == first, "the same server"
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            signal.pause()
    """)
    assert driver.output().count("printed, not flushed") == 2
    wait_until(lambda: len(marked(driver.mark)) == 1, "all but the driver's own child are gone")


def test_a_second_interrupt_while_workers_are_ended_leaves_no_file(start):
    driver = start(
        """
        train()
        files = opened()

        def interrupt_twice(signum, frame):
            signal.raise_signal(signal.SIGINT)  # kept, and heard where the driver waits for the workers' end
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt_twice)

        def interrupt_once(progress):
            os.kill(os.getpid(), signal.SIGINT)

        try:
            train(steps=10**6, progress=interrupt_once)
        except KeyboardInterrupt:
            print("interrupted")
        wait_until(lambda: not fork_servers() and not workers(), "no process is left")
        assert not [name for name in opened() if "memfd" in name], opened()
        assert set(opened()) <= set(files), f"{files} became {opened()}"
    """
    )
    assert driver.output() == "interrupted\n"


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_interrupts_at_any_moment_leave_no_process_no_file_and_no_server_out_of_step(start, rounds):
    driver = start(
        """
        train()
        files = opened()

        def handle(signum, frame):  # as Python's own, but only in a run: a late one is not this test's business
            while frame is not None:
                if frame.f_code is pl.train.__code__:
                    raise KeyboardInterrupt
                frame = frame.f_back

        signal.signal(signal.SIGINT, handle)

        def interrupt(has_ended, *delays_s):
            for delay_s in delays_s:
                time.sleep(delay_s)
                os.kill(os.getpid(), signal.SIGINT)
            while not has_ended.wait(1):  # the run had not begun yet
                os.kill(os.getpid(), signal.SIGINT)

        def check():
            wait_until(lambda: len(fork_servers()) <= 1 and not workers(), "no process is left")
            now = opened()
            assert len(now) - len(files) in (0, -1), f"none but a server's channel: {files} became {now}"

        chance = random.Random(0)
        heard = 0
        for number in range(ROUNDS):
            delays_s = [chance.uniform(0, 0.12)]
            if chance.random() < 0.7:
                delays_s.append(chance.uniform(0, 0.005))
            has_ended = threading.Event()
            thread = threading.Thread(target=interrupt, args=(has_ended, *delays_s))
            thread.start()
            try:
                train(steps=10**6)
            except KeyboardInterrupt:
                heard += 1
            has_ended.set()
            thread.join()
            check()
            if number % 20 == 7:
                assert train().steps == 2
                check()
        print("interrupted", heard)
    """.replace("ROUNDS", str(rounds))
    )
    assert driver.output() == f"interrupted {rounds}\n"


@pytest.mark.slow
def test_a_forked_child_trains_though_torch_has_lost_its_threads_there(start):
    driver = start("""
        torch.set_num_threads(4)
        torch.randn(2_000_000).exp().sum()  # starts torch's threads, which a fork does not copy

        def model():
            return torch.nn.Sequential(torch.nn.Linear(4, 20_000), torch.nn.Linear(20_000, 2)).double()

        for cluster in (pl.Local(workers=2), simulated(2)):
            child = os.fork()
            if child == 0:
                run = pl.train(a_task(model=model), "all-reduce", cluster, steps=2)
                run.model(torch.ones(1000, 4, dtype=torch.float64))
                os._exit(40 + run.steps)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert driver.output().split() == ["42", "42"]
