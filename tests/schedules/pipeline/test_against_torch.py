"""Our orders against those of torch.distributed.pipelining, action by action, where it has them.

Its schedules are made with stages, which need a process group; their lists of actions come from methods that read a few
numbers only, so those methods are called with the numbers.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.schedules.pipeline import Action, Phase, pipeline_order
from paceline.schedules.pipeline.actions import stage_of

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

PHASES = {"F": Phase.FORWARD, "I": Phase.INPUTS, "W": Phase.WEIGHTS, "B": Phase.BACKWARD}
SIZES = [(1, 1), (1, 5), (2, 2), (2, 8), (3, 7), (4, 4), (4, 8), (4, 11), (8, 24)]


def ours(actions, stages: int) -> tuple[Action, ...]:
    """A list of torch's actions, without pauses and actions for sharded gradients."""
    kept = (a for a in actions if a is not None and a.computation_type.value in PHASES)
    return tuple(
        Action(PHASES[a.computation_type.value], a.microbatch_index, a.stage_index // stages) for a in kept
    )


def theirs(order, stages: int):
    """Our order in torch's words."""
    words = {phase: schedules._ComputationType(word) for word, phase in PHASES.items()}
    return {
        rank: [schedules._Action(stage_of(rank, a.chunk, stages), words[a.phase], a.micro) for a in actions]
        for rank, actions in enumerate(order)
    }


def single(kind: str, p: int, m: int):
    made = getattr(schedules, kind)._get_pipeline_order(SimpleNamespace(_num_stages=p, _n_microbatches=m))
    return tuple(ours(made[rank], p) for rank in range(p))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_is_that_of_torch(p: int, m: int):
    assert single("ScheduleGPipe", p, m) == pipeline_order("gpipe", p, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b_is_that_of_torch(p: int, m: int):
    made, order = single("Schedule1F1B", p, m), pipeline_order("1f1b", p, m)
    assert made[:-1] == order[:-1]
    # Of the last stage torch's list counts forwards from 1, though its schedule runs them from 0.
    assert [action.phase for action in made[-1]] == [action.phase for action in order[-1]]


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (4, 3), (4, 8), (4, 10), (8, 24)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_is_that_of_torch(p: int, m: int, chunks: int):
    assert _of_rounds("ScheduleInterleaved1F1B", p, m, chunks) == pipeline_order("interleaved", p, m, chunks)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (4, 4), (4, 8), (8, 24)])
def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_chunk(p: int, m: int):
    assert _of_rounds("ScheduleInterleavedZeroBubble", p, m, 1) == pipeline_order("zb-h1", p, m)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"])
def test_torchs_own_check_lets_our_orders_through_and_finds_a_place_for_each_message(name: str):
    p, m, chunks = 4, 10, 2 if name == "interleaved" else 1
    order = theirs(pipeline_order(name, p, m, chunks), p)
    places = schedules._validate_schedule(order, p, p * chunks, m)
    assert places == {segment: segment % p for segment in range(p * chunks)}
    with_messages = schedules._add_send_recv(order, lambda segment: segment % p, p * chunks)
    sent = sum(a.computation_type.value.startswith("SEND") for each in with_messages.values() for a in each)
    assert sent == 2 * m * (p * chunks - 1)


def _of_rounds(kind: str, p: int, m: int, chunks: int):
    rounds = max(1, m // p)
    numbers = SimpleNamespace(
        n_local_stages=chunks, pp_group_size=p, _n_microbatches=m, microbatches_per_round=m // rounds
    )
    calculate = getattr(schedules, kind)._calculate_single_rank_operations
    return tuple(ours(calculate(numbers, rank), p) for rank in range(p))
