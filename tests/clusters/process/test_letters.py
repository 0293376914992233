"""Outcomes and errors reach the driver unchanged, without a pickle."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.clusters.base.outcome import Outcome
from paceline.clusters.process.letters import (
    read_error,
    read_outcome,
    read_outcomes,
    write_error,
    write_outcome,
    write_outcomes,
)
from paceline.errors import (
    ConfigurationError,
    GradientNotFiniteError,
    LossNotFiniteError,
    OutOfMemoryError,
    PeerLost,
    WorkerError,
)
from paceline.trace import Kind, Recorder


def an_outcome(rank: int) -> Outcome:
    recorder = Recorder(rank, "worker")
    recorder.add(Kind.COMPUTE, 0.0, 1.5, -1, 0, 3)
    return Outcome(
        rank=rank,
        losses=[(0, 1.25, 8), (1, 0.5, 8)],
        staleness={0: 3, 2: 1},
        lost=[(1, 4)],
        spans=recorder.pack(),
        state={"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(7)},
        result=[torch.ones(2, dtype=torch.bfloat16), {"a": None}],
    )


def as_read(blobs: list[object]) -> list[bytearray]:
    return [bytearray(memoryview(blob).cast("B")) for blob in blobs]


def test_an_outcome_comes_back_with_its_tensors_and_spans():
    before = an_outcome(2)
    values, blobs = write_outcome(before)
    after = read_outcome(values, as_read(blobs))
    assert (after.rank, after.losses, after.staleness, after.lost) == (
        2,
        before.losses,
        {0: 3, 2: 1},
        [(1, 4)],
    )
    assert after.spans == before.spans
    assert torch.equal(after.state["weight"], before.state["weight"])
    assert torch.equal(after.state["count"], before.state["count"])
    assert torch.equal(after.result[0], before.result[0])


def test_the_outcomes_of_all_ranks_come_in_one_letter_those_of_lost_ranks_too():
    outcomes = [an_outcome(0), Outcome(rank=1, lost=[(1, 2)]), an_outcome(2)]
    values, blobs = write_outcomes(outcomes)
    after = read_outcomes(values, as_read(blobs))
    assert [outcome.rank for outcome in after] == [0, 1, 2]
    assert after[1].spans is None
    assert after[2].spans == outcomes[2].spans
    assert torch.equal(after[2].state["weight"], outcomes[2].state["weight"])


@pytest.mark.parametrize(
    "error",
    [
        PeerLost(3, "killed", "rank 1 was waiting"),
        LossNotFiniteError(1, 7, math.inf),
        GradientNotFiniteError(1, 7, "0.weight"),
        OutOfMemoryError(1, 7, "Traceback", "48 MiB"),
        ConfigurationError("algorithm", "must be known", "x", "choose another"),
    ],
)
def test_an_error_of_our_own_comes_back_as_it_was(error: Exception):
    after = read_error(write_error(0, 5, error))
    assert type(after) is type(error)
    assert str(after) == str(error)


def test_any_other_error_names_rank_and_step():
    try:
        raise KeyError("weights")
    except KeyError as raised:
        after = read_error(write_error(4, 9, raised))
    assert isinstance(after, WorkerError)
    assert (after.rank, after.step) == (4, 9)
    assert "KeyError: 'weights'" in str(after)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [(lambda: torch.empty(2**48), ": could not allocate 1024 TiB;"), (lambda: bytearray(2**62), ";")],
    ids=["torch", "Python"],
)
def test_a_lack_of_memory_names_the_rank_what_it_asked_for_and_what_needs_less(make, wanted):
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        make()
    after = read_error(write_error(4, 9, raised.value))
    assert isinstance(after, OutOfMemoryError)
    assert (
        f"rank 4 is out of memory in step 9{wanted} each worker needs less memory with zero:stage=3 or pipeline"
        in str(after)
    )
