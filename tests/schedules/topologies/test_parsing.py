import pytest
from refusals import refused, unknown

from paceline.errors import UnknownNameError
from paceline.schedules.topologies.build import parse_topology


def test_parameters_follow_a_colon():
    assert parse_topology("ring") == ("ring", {})
    assert parse_topology("erdos-renyi:p=0.2,seed=3") == ("erdos-renyi", {"p": 0.2, "seed": 3})


def test_colons_may_stand_for_commas():
    assert parse_topology("erdos-renyi:p=0.2:seed=3") == parse_topology("erdos-renyi: p = 0.2, seed = 3")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("rign", unknown("topology", "rign", nearest="ring")),
        ("ring:degree=2", unknown("parameter of ring", "degree")),
        ("random-regular:degre=2", unknown("parameter of random-regular", "degre", nearest="degree")),
        ("random-regular:degree", refused("random-regular:degree", "random-regular:degree")),
        (
            "random-regular:degree=4,degree=5",
            refused("random-regular:degree", "random-regular:degree=4,degree=5"),
        ),
        ("random-regular:degree=four", refused("random-regular:degree", "four")),
        ("erdos-renyi:p=often", refused("erdos-renyi:p", "often")),
    ],
)
def test_wrong_words_are_refused_with_the_valid_ones(words, refusal):
    with refusal:
        parse_topology(words)


def test_an_unknown_name_is_an_unknown_name_error():
    with pytest.raises(UnknownNameError):
        parse_topology("moebius")
