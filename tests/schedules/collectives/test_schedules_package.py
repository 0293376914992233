"""Requirements for every collective and algorithm. A new algorithm of the table is tested automatically."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown

from paceline.errors import ConfigurationError
from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES, group_plan
from paceline.schedules.collectives.matching import match
from paceline.schedules.collectives.steps import Send, chunk_bounds
from paceline.testing.schedules.goals import GOALS
from paceline.testing.schedules.validate import validate

EVERY = [(goal, name) for goal, table in COLLECTIVES.items() for name in table]
ROOTED = [(goal, name) for goal, name in EVERY if goal in ("broadcast", "gather", "reduce", "scatter")]
SIZES = [*range(1, 18), 24, 31, 32, 33]


def group(goal: str, name: str, size: int, **options: object):
    return [COLLECTIVES[goal][name](rank, size, **options) for rank in range(size)]


def test_all_reduce_algorithms_go_by_their_names_in_the_literature():
    assert set(ALL_REDUCE) == {
        "reduce-broadcast",
        "tree",
        "all-to-all",
        "naive-ring",
        "ring",
        "recursive-doubling",
        "halving-doubling",
        "hierarchical",
    }


def test_every_collective_has_a_goal_to_be_proved_against():
    assert set(COLLECTIVES) == set(GOALS)


@pytest.mark.parametrize(("goal", "name"), EVERY)
def test_every_algorithm_is_proved_right_for_any_size(goal: str, name: str):
    for size in SIZES:
        validate(group(goal, name, size), goal)


@pytest.mark.parametrize(
    ("goal", "name"), [*ROOTED, ("all-reduce", "tree"), ("all-reduce", "reduce-broadcast")]
)
def test_every_rank_may_be_the_root(goal: str, name: str):
    for size in (1, 2, 3, 6, 8):
        for root in range(size):
            validate(group(goal, name, size, root=root), goal, root)


@pytest.mark.parametrize(("goal", "name"), EVERY)
def test_a_group_of_one_sends_nothing(goal: str, name: str):
    (alone,) = group(goal, name, 1)
    assert not any(isinstance(step, Send) for steps in alone.rounds for step in steps)


@pytest.mark.parametrize("name", ALL_REDUCE)
@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 17), length=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
def test_every_all_reduce_gives_the_same_bits_on_every_rank_in_whatever_order_steps_run(
    execute, name: str, size: int, length: int, seed: int
):
    schedules = group("all-reduce", name, size)
    vectors = np.random.default_rng(seed).standard_normal((size, length)).astype(np.float32)
    bounds = chunk_bounds(length, schedules[0].chunks)
    data = [np.split(vector, bounds[1:-1]) for vector in vectors]
    ends = [np.concatenate(rows) for rows in execute(schedules, data, np.add, random.Random(seed))]
    assert len({end.tobytes() for end in ends}) == 1
    np.testing.assert_allclose(ends[0], vectors.astype(np.float64).sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_other_collectives_move_what_they_say(execute, size: int):
    data = [[(rank, chunk) for chunk in range(size)] for rank in range(size)]

    def run(goal: str, name: str, **options: object):
        return execute(group(goal, name, size, **options), data, lambda a, b: a)

    root = size // 2
    everyone = range(size)
    assert run("all-gather", "ring") == [[(c, c) for c in everyone]] * size
    assert run("all-to-all", "pairwise") == [[(c, rank) for c in everyone] for rank in everyone]
    assert run("gather", "flat", root=root)[root] == [(c, c) for c in everyone]
    assert [row[i] for i, row in enumerate(run("scatter", "flat", root=root))] == [
        (root, c) for c in everyone
    ]


@pytest.mark.parametrize(("goal", "name"), EVERY)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 12])
def test_a_group_plan_has_the_messages_of_the_per_rank_schedules(goal: str, name: str, size: int):
    planned = [
        message
        for part in group_plan(goal, name, size).rounds()
        for message in zip(
            part.pairing.sources.tolist(),
            part.pairing.targets.tolist(),
            part.starts.tolist(),
            part.stops.tolist(),
            strict=True,
        )
    ]
    matches = match(group(goal, name, size))
    expected = [(m.sender.rank, m.receiver.rank, m.sent.start, m.sent.stop) for m in matches]
    by_sender = [[m for m in planned if m[0] == rank] for rank in range(size)]
    assert by_sender == [[m for m in expected if m[0] == rank] for rank in range(size)]


@pytest.mark.parametrize(("goal", "name"), EVERY)
def test_a_rank_outside_the_group_is_refused(goal: str, name: str):
    for rank, size in ((-1, 4), (4, 4), (0, 0)):
        with pytest.raises(ConfigurationError):
            COLLECTIVES[goal][name](rank, size)


@pytest.mark.parametrize(("goal", "name"), ROOTED)
def test_a_root_outside_the_group_is_refused(goal: str, name: str):
    with refused("root", 4, bound=has(0, 3)):
        COLLECTIVES[goal][name](0, 4, root=4)


def test_an_unknown_algorithm_is_refused_with_the_nearest_name():
    with unknown("algorithm", "rings", nearest="ring"):
        group_plan("all-reduce", "rings", 4)
    with unknown("goal", "allreduce", nearest="all-reduce"):
        group_plan("allreduce", "ring", 4)
