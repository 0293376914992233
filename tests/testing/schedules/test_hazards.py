from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import has, raised

from paceline.schedules.collectives.steps import Accumulate, Buffer, Chunks, Copy, Recv, Schedule, Send
from paceline.testing.schedules.hazards import check_hazards
from paceline.testing.schedules.validate import ScheduleError

ranges = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted)
chunks = st.builds(lambda r, b: Chunks(*r, b), ranges, st.sampled_from(Buffer))
steps = st.one_of(
    st.builds(Send, st.just(1), chunks),
    st.builds(Recv, st.just(1), chunks),
    st.builds(Copy, chunks, chunks),
    st.builds(Accumulate, chunks, chunks),
)


def touched(step) -> tuple[set, set]:
    """Return the chunks that a step reads and those that it writes."""

    def cells(where: Chunks) -> set:
        return {(where.buffer, i) for i in range(where.start, where.stop)}

    match step:
        case Send(_, where):
            return cells(where), set()
        case Recv(_, where):
            return set(), cells(where)
    return cells(step.source), cells(step.target)


@given(st.lists(steps, max_size=6))
def test_a_round_is_refused_exactly_if_something_is_written_that_is_also_touched_otherwise(drawn):
    written, read, clash = set(), set(), False
    for step in drawn:
        reads, writes = touched(step)
        clash |= bool(writes & (written | read)) or bool(reads & written) or bool(reads & writes)
        read, written = read | reads, written | writes
    schedule = Schedule(6, (tuple(drawn),))
    if clash:
        with raised(ScheduleError, rank=0, round=0, fault="hazard"):
            check_hazards([schedule])
    else:
        check_hazards([schedule])


@pytest.mark.parametrize("where", [Chunks(0, 3), Chunks(-1, 1), Chunks(2, 1), Chunks(0, 5, Buffer.SCRATCH)])
def test_chunks_that_do_not_exist_are_refused(where: Chunks):
    with raised(ScheduleError, fault="chunks", problem=has(0)):
        check_hazards([Schedule(2, ((Send(1, where),),), scratch=2)])
