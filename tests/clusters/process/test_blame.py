"""The error of a stalled run names the rank at fault, not a rank that waits for it."""

import pytest
from clusters.test_failures import UNLUCKY, place_of, stops_itself, unlucky_task
from conformance.cases import one_in
from refusals import has, raised

import paceline as pl
from paceline.clusters.process.blame import ProcessState, explain
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError
from paceline.links.memory.shared import SharedMemory
from paceline.links.operation import Activity

RANKS = 4


@pytest.fixture
def board():
    return StatusBoard(SharedMemory.create("test-board", StatusBoard.nbytes(RANKS)), RANKS)


def explained(board, rank=0, **others):
    """Return the explained error of rank 0, given the states of some processes."""
    life = {int(name.removeprefix("rank")): state for name, state in others.items()}
    error = DeadlineError(rank, "receive from rank 1 in step 0", "rank 1", 3.0)
    return explain(error, board, lambda other: life.get(other, ProcessState.ASLEEP))


def waits(board, rank, *awaited, doing=Activity.receive):
    board.note_doing(rank, doing, awaited)


def test_who_waits_for_one_that_waits_names_the_one_behind_it(board):
    waits(board, 0, 1)
    waits(board, 1, 2, doing=Activity.send)
    board.set_step(1, 7)
    board.note_doing(2, Activity.working)
    error = explained(board)
    assert (error.rank, error.awaited, error.deadline_s) == (1, "rank 2", 3.0)
    assert error.operation == "send to rank 2 in step 7"
    assert "rank 2 sleeps, for 0.0 s working in step 0; rank 0 waits for rank 1" in str(error)


def test_who_waits_directly_keeps_its_own_words(board):
    waits(board, 0, 1)
    assert explained(board, rank1=ProcessState.STOPPED).operation == "receive from rank 1 in step 0"


def test_one_that_is_stopped_is_to_blame_even_if_it_says_that_it_waits(board):
    waits(board, 0, 1)
    waits(board, 1, 0)
    error = explained(board, rank1=ProcessState.STOPPED)
    assert error.awaited == "rank 1"
    assert "rank 1 is stopped by a signal" in error.view


@pytest.mark.parametrize(
    ("state", "culprit"),
    [
        ({"rank3": ProcessState.STOPPED}, 3),
        ({"rank2": ProcessState.GONE}, 2),
        ({"rank1": ProcessState.SILENT}, 1),
        ({}, 2),
    ],
)
def test_of_several_that_are_waited_for_the_likeliest_cause_is_named(board, state, culprit):
    waits(board, 0, 1, 2, 3)
    waits(board, 1, 0)
    board.note_doing(2, Activity.working)
    waits(board, 3, 0)
    assert explained(board, **state).awaited == f"rank {culprit}"


@pytest.mark.parametrize("state", [ProcessState.STOPPED, ProcessState.ASLEEP])
def test_one_that_gave_up_at_the_same_deadline_a_moment_before_is_not_to_blame(board, state):
    waits(board, 0, 1, 2, 3)
    waits(board, 1, 0)
    waits(board, 2, 0)
    board.note_doing(3, Activity.working)
    assert explained(board, rank1=ProcessState.GONE, rank3=state).awaited == "rank 3"
    waits(board, 0, 1)
    assert explained(board, rank1=ProcessState.GONE).awaited == "rank 0"  # a cycle


def test_a_rank_that_the_run_goes_on_without_is_not_to_blame(board):
    waits(board, 0, 1, 2, 3)
    board.set_status(1, Status.LOST)
    assert explained(board, rank1=ProcessState.GONE, rank3=ProcessState.STOPPED).awaited == "rank 3"


def test_at_a_barrier_the_first_that_is_missing_is_waited_for(board):
    waits(board, 0, 2, 3, doing=Activity.barrier)
    board.note_doing(2, Activity.working)
    assert explained(board).awaited == "rank 2"


def test_a_circle_of_sleepers_is_a_deadlock(board):
    waits(board, 0, 1)
    waits(board, 1, 2)
    waits(board, 2, 0)
    assert "a deadlock, or a message that was lost; rank 0 waits for rank 1 waits for rank 2" in str(
        explained(board)
    )


def test_a_circle_with_one_that_wants_the_processor_is_none(board):
    waits(board, 0, 1)
    waits(board, 1, 0)
    assert "rank 1 is running or ready to run" in explained(board, rank1=ProcessState.RUNNABLE).view


def test_an_error_of_one_who_is_no_rank_stays_as_it_is(board):
    error = DeadlineError(-1, "starting", "rank 2", 60.0)
    assert explain(error, board, lambda _: ProcessState.ASLEEP) is error
    assert str(error).startswith("the driver waited 60 s in starting for rank 2;")


@pytest.mark.parametrize(
    "spec",
    one_in(
        3, [(s,) for s in ("sync", "map-reduce", "fedavg", "ssp:staleness=1", "all-reduce:algorithm=tree")]
    ),
)
def test_the_rank_that_is_stopped_is_named_whoever_noticed_first(spec):
    _, rank = place_of(UNLUCKY, 4)
    task = unlucky_task(stops_itself) if spec != "fedavg" else unlucky_task(stops_itself, batch_size=24)
    with raised(DeadlineError, view=has("stopped")) as caught:
        pl.train(task, spec, pl.Local(workers=4, deadline_s=2.0), steps=100)
    if spec != "fedavg":  # which parts the samples among its clients in another way
        assert caught.value.awaited == f"rank {rank}"
    assert caught.value.awaited.removeprefix("rank ") in caught.value.view
