import pytest

from paceline.comparison.names import named_strategies, split_strategies
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies.k_sync import KSync


@pytest.mark.parametrize(
    ("text", "strategies"),
    [
        ("all-reduce", ["all-reduce"]),
        ("all-reduce,async", ["all-reduce", "async"]),
        ("k-sync:k=3,servers=2,async", ["k-sync:k=3,servers=2", "async"]),
        (" all-reduce , k-sync:k=3 , servers=2 ", ["all-reduce", "k-sync:k=3,servers=2"]),
        ("k-sync,k=3,async", ["k-sync:k=3", "async"]),
        (
            "decentralized:topology=ring,all-reduce:algorithm=ring",
            ["decentralized:topology=ring", "all-reduce:algorithm=ring"],
        ),
    ],
)
def test_a_parameter_belongs_to_the_strategy_before_it(text, strategies):
    assert split_strategies(text) == strategies


@pytest.mark.parametrize("text", ["", "  ", "all-reduce,,async", "all-reduce,"])
def test_an_empty_part_is_refused(text):
    with pytest.raises(ConfigurationError, match="must be strategies with commas between them"):
        split_strategies(text)


def test_a_list_cannot_begin_with_a_parameter():
    with pytest.raises(ConfigurationError, match="must begin with a strategy's name, but got 'k=3'"):
        split_strategies("k=3,async")


def test_strategies_are_named_by_their_words():
    named = named_strategies(["all-reduce", KSync(k=2)], 4)
    assert list(named) == ["all-reduce", "k-sync:k=2"]
    assert list(named_strategies("async,sync", 4)) == ["async", "sync"]
    assert list(named_strategies(KSync(k=2), 4)) == ["k-sync:k=2"]


@pytest.mark.parametrize(
    ("strategies", "error", "message"),
    [
        ([], ConfigurationError, "strategies must be at least one"),
        (["all-reduse"], UnknownNameError, "did you mean 'all-reduce'"),
        (["k-sync:kk=3"], UnknownNameError, "parameter of k-sync"),
        (["k-sync:k=three"], ConfigurationError, "must be of type int"),
        (["all-reduce", "k-sync:k=5"], ConfigurationError, "k must be a whole number from 1 to 4"),
        (["async", "async"], ConfigurationError, "must each be given once, but got 'async'; use repeat"),
        ([3], ConfigurationError, "must be a name or an object"),
    ],
)
def test_what_cannot_run_is_refused(strategies, error, message):
    with pytest.raises(error, match=message):
        named_strategies(strategies, 4)
