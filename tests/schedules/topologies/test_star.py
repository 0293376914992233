import pytest

from paceline.schedules.topologies import build_topology


def test_all_meet_at_peer_0_alone():
    star = build_topology("star", 5)
    assert star.neighbours(0) == (1, 2, 3, 4)
    assert [star.neighbours(rank) for rank in range(1, 5)] == [(0,)] * 4
    assert dict(star.row(3)) == {0: 1 / 5, 3: pytest.approx(4 / 5)}


@pytest.mark.parametrize("peers", [1, 2])
def test_the_smallest_stars_are_a_peer_and_a_pair(peers):
    assert len(build_topology("star", peers).edges()) == 2 * (peers - 1)
