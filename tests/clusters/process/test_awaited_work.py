"""A rank that computes is not late. One that is stopped, sleeps or waits makes no progress."""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import wait_until

import paceline as pl
from paceline.clusters.process.awaited_work import LIMIT, AwaitedWork, processor_ns
from paceline.clusters.process.patience import Patience
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.links.memory.shared import SharedMemory
from paceline.links.operation import Activity

RANKS = 4


@pytest.fixture
def board():
    return StatusBoard(SharedMemory.create("test-board", StatusBoard.nbytes(RANKS)), RANKS)


def look(board, *working):
    """Return the increase of each rank's count in the next interval, if these ranks have used a core."""
    work = AwaitedWork(board, 60.0)
    work.look()
    before = [board.awaited_work(rank) for rank in range(RANKS)]
    for rank in working:
        board.set_processor_ns(rank, board.processor_ns(rank) + 3_600_000_000_000)
    work.look()
    return [board.awaited_work(rank) - before[rank] for rank in range(RANKS)]


def test_work_counts_for_all_that_wait_for_it_directly_or_through_others(board):
    board.note_doing(0, Activity.receive, [1])
    board.note_doing(1, Activity.send, [2])
    board.note_doing(3, Activity.receive, [0, 1, 2])
    assert look(board, 2) == [1, 1, 0, 1]


def test_the_processor_time_of_ranks_that_wait_is_no_work(board):
    board.note_doing(0, Activity.receive, [1])
    board.note_doing(1, Activity.receive, [0])
    assert look(board, 0, 1) == [0, 0, 0, 0]


def test_the_work_of_ranks_that_nobody_waits_for_counts_for_nobody(board):
    board.note_doing(0, Activity.receive, [1])
    assert look(board, 2, 3) == [0, 0, 0, 0]


def test_a_lost_rank_does_no_work(board):
    board.note_doing(0, Activity.receive, [1])
    board.set_status(1, Status.LOST)
    assert look(board, 1) == [0, 0, 0, 0]


def test_a_little_processor_time_is_no_work(board):
    """A rank that sleeps wakes now and then to check the others."""
    board.note_doing(0, Activity.receive, [1])
    work = AwaitedWork(board, 60.0)
    work.look()
    board.set_processor_ns(1, board.processor_ns(1) + 1)
    work.look()
    assert board.awaited_work(0) == 0


def test_a_process_that_is_stopped_uses_no_processor_time():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_until(lambda: processor_ns(busy.pid) > 10_000_000, "it has computed")
        os.kill(busy.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, busy.pid, os.WSTOPPED)
        before_ns = processor_ns(busy.pid)
        time.sleep(0.05)
        assert processor_ns(busy.pid) == before_ns
    finally:
        busy.kill()
        busy.wait()
    assert processor_ns(busy.pid) == 0


def compute_until(until_s):
    while time.monotonic() < until_s:
        pass


def test_ranks_wait_longer_than_the_deadline_for_one_that_computes_and_the_driver_says_so_once(caplog):
    deadline_s = 2.0

    async def program(ctx):
        if ctx.rank == 2:
            compute_until(time.monotonic() + 1.5 * deadline_s)
            await ctx.net.send(1, torch.ones(1))
        if ctx.rank == 1:
            await ctx.net.send(0, (await ctx.net.recv(2)).tensor)
        return (await ctx.net.recv(1)).tensor.item() if ctx.rank == 0 else 1.0

    with caplog.at_level(logging.WARNING, "paceline"):
        run = pl.run_program(program, pl.Local(workers=3, deadline_s=deadline_s))
    assert run.results == [1.0, 1.0, 1.0]
    assert [record.args[2] for record in caplog.records] == [2]


class Receive:
    """An operation with the members that the timeout of a wait uses."""

    arrived = 0

    def progress(self):
        return self.arrived


def test_work_extends_a_wait_up_to_a_limit_and_data_restart_it(monkeypatch):
    now_s, worked, operation = [100.0], [0], Receive()
    monkeypatch.setattr("paceline.clusters.process.waits.time.monotonic", lambda: now_s[0])
    patience = Patience(4.0, lambda: worked[0])

    def ends_after(*, works):
        start_s = now_s[0]
        while not patience.is_over(operation):
            now_s[0] += 1.0
            worked[0] += works
        return now_s[0] - start_s, patience.limit_s

    assert ends_after(works=False) == (4.0, 4.0)
    operation.arrived = 1
    assert ends_after(works=True) == (LIMIT * 4.0, LIMIT * 4.0)
    operation.arrived = 2
    assert not patience.is_over(operation)
    now_s[0] += 3.0
    worked[0] += 1
    assert ends_after(works=False) == (4.0, 4.0), "a rank that is stopped after some work has one deadline"


@pytest.mark.slow
def test_a_rank_that_computes_when_all_else_is_done_is_waited_for():
    async def program(ctx):
        if ctx.rank == 1:
            compute_until(time.monotonic() + 5.0)  # the driver gives two seconds more than the deadline
        return ctx.rank

    assert pl.run_program(program, pl.Local(workers=2, deadline_s=1.0)).results == [0, 1]
