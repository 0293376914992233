import pytest

from paceline.errors import ConfigurationError, UnknownNameError
from paceline.schedules.topologies.words import parse_words


def test_parameters_follow_a_colon():
    assert parse_words("ring") == ("ring", {})
    assert parse_words("erdos-renyi:p=0.2,seed=3") == ("erdos-renyi", {"p": 0.2, "seed": 3})


def test_colons_may_stand_for_commas():
    assert parse_words("erdos-renyi:p=0.2:seed=3") == parse_words("erdos-renyi: p = 0.2, seed = 3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rign", "topology must be one of .*torus, but got 'rign'; did you mean 'ring'"),
        ("ring:degree=2", "parameter of ring must be one of \\(none\\), but got 'degree'"),
        ("random-regular:degre=2", "must be one of degree, seed, but got 'degre'; did you mean 'degree'"),
        ("random-regular:degree", "random-regular:degree must be given a value"),
        ("random-regular:degree=4,degree=5", "random-regular:degree must be given once"),
        ("random-regular:degree=four", "random-regular:degree must be a whole number, but got 'four'"),
        ("erdos-renyi:p=often", "erdos-renyi:p must be a number, but got 'often'"),
    ],
)
def test_wrong_words_are_refused_with_the_valid_ones(words, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_words(words)


def test_an_unknown_name_is_an_unknown_name_error():
    with pytest.raises(UnknownNameError):
        parse_words("moebius")
