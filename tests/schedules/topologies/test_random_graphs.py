import math

import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology


def test_all_peers_of_a_random_regular_graph_have_the_same_degree():
    topology = build_topology("random-regular:degree=6", 50)
    assert {len(topology.neighbours(rank)) for rank in range(50)} == {6}


@pytest.mark.parametrize("words", ["random-regular:degree=3", "erdos-renyi:p=0.4"])
def test_a_seed_draws_the_same_graph_each_time_and_another_another(words):
    first = build_topology(words, 20, seed=1)
    assert build_topology(f"{words},seed=1", 20).edges().tolist() == first.edges().tolist()
    assert build_topology(f"{words},seed=1", 20, seed=5).edges().tolist() == first.edges().tolist()
    assert build_topology(words, 20, seed=2).edges().tolist() != first.edges().tolist()


def test_erdos_renyi_joins_pairs_with_its_probability():
    pairs = 200 * 199 / 2
    joined = len(build_topology("erdos-renyi:p=0.3", 200).edges()) / 2
    assert abs(joined - 0.3 * pairs) < 5 * math.sqrt(pairs * 0.3 * 0.7)


@pytest.mark.parametrize("p", [0, 1])
def test_probabilities_0_and_1_join_none_and_all(p):
    topology = build_topology(f"erdos-renyi:p={p}", 6, allow_disconnected=True)
    assert len(topology.edges()) == p * 30


def test_the_default_probability_is_twice_the_threshold_of_connectedness():
    default = build_topology("erdos-renyi", 100, allow_disconnected=True)
    given = build_topology(f"erdos-renyi:p={2 * math.log(100) / 100}", 100, allow_disconnected=True)
    assert np.array_equal(default.edges(), given.edges())


@pytest.mark.parametrize(
    ("words", "peers", "refusal"),
    [
        (
            "random-regular:degree=8",
            8,
            refused("random-regular:degree", 8, bound=has(0)),
        ),
        ("random-regular:degree=-1", 8, refused("random-regular:degree", -1, bound=has(0))),
        (
            "random-regular:degree=3",
            7,
            refused("random-regular:degree", 3, bound=has(7), remedy=has(4)),
        ),
        ("erdos-renyi:p=1.5", 8, refused("erdos-renyi:p", 1.5, bound=has(0))),
        ("erdos-renyi:p=nan", 8, refused("erdos-renyi:p", has("nan"), bound=has(0, 1))),
        ("erdos-renyi:p=0.01", 16, refused("topology")),
        (
            "random-regular:degree=1",
            8,
            refused("topology", has(4)),
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(words, peers, refusal):
    with refusal:
        build_topology(words, peers)


def test_ten_thousand_peers_keep_a_row_each_and_no_matrix():
    topology = build_topology("random-regular:degree=4", 10_000)
    assert len(topology.rows[0].weights) == 50_000
    assert sum(weight for _, weight in topology.row(9_999)) == pytest.approx(1)
