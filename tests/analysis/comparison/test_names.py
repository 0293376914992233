import pytest
from refusals import has, refused, unknown

from paceline.analysis.comparison.names import named_strategies, split_strategies
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
    with refused("strategies", text):
        split_strategies(text)


def test_a_list_cannot_begin_with_a_parameter():
    with refused("strategies", "k=3"):
        split_strategies("k=3,async")


def test_strategies_are_named_by_their_words():
    named = named_strategies(["all-reduce", KSync(k=2)], 4)
    assert list(named) == ["all-reduce", "k-sync:k=2"]
    assert list(named_strategies("async,sync", 4)) == ["async", "sync"]
    assert list(named_strategies(KSync(k=2), 4)) == ["k-sync:k=2"]


@pytest.mark.parametrize(
    ("strategies", "refusal"),
    [
        ([], refused("strategies", [])),
        (["all-reduse"], unknown("strategy", "all-reduse", nearest="all-reduce")),
        (["k-sync:kk=3"], unknown("parameter of k-sync", "kk")),
        (["k-sync:k=three"], refused("k-sync:k", "three")),
        (["all-reduce", "k-sync:k=5"], refused("k", 5, bound=has(1, 4))),
        (["async", "async"], refused("strategies", "async")),
        ([3], refused("strategy", 3)),
    ],
)
def test_what_cannot_run_is_refused(strategies, refusal):
    with refusal:
        named_strategies(strategies, 4)
