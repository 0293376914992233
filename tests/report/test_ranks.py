import pytest
from report.cases import handmade

from paceline.report.ranks import group_labels, group_size, ranks_with_lanes
from paceline.trace import Kind


def test_every_rank_of_a_small_run_has_a_lane():
    assert ranks_with_lanes(handmade(ranks=5).trace.summary()) == [0, 1, 2, 3, 4]


def test_of_a_large_run_servers_stragglers_and_the_idlest_have_lanes():
    busy = [(rank, Kind.COMPUTE, 0.0, 9.0) for rank in range(200) if rank not in (77, 150)]
    waits = [(77, Kind.WAIT, 0.0, 9.0, 123)]  # 77 waits for 123; 150 does nothing at all
    run = handmade(busy + waits, ranks=200, roles=["worker"] * 199 + ["server"])
    lanes = ranks_with_lanes(run.trace.summary())
    assert {199, 123, 77, 150} <= set(lanes)
    assert len(lanes) == len(set(lanes)) == 64
    assert lanes == sorted(lanes)


def test_servers_do_not_take_all_lanes():
    run = handmade(ranks=200, roles=["server"] * 150 + ["worker"] * 50)
    lanes = ranks_with_lanes(run.trace.summary())
    assert len(lanes) == 64
    assert any(rank >= 150 for rank in lanes)


@pytest.mark.parametrize("ranks", [1, 63, 64, 65, 1000, 10_007])
def test_groups_cover_all_ranks_and_are_few(ranks):
    labels = group_labels(ranks)
    assert len(labels) <= 64
    assert labels[0].split("-")[0] == "0"
    assert labels[-1].split("-")[-1] == str(ranks - 1)
    assert group_size(ranks) == 1 or ranks > 64
