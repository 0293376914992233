from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from refusals import has, refused, unknown

from paceline.context import Strategy
from paceline.errors import UnknownNameError
from paceline.strategies import STRATEGIES, describe, parse
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.registry import table


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Has a parameter of every type."""

    count: int = 1
    share: float | None = None
    loud: bool = False
    name: str = "x"

    def roles(self, workers):
        return ("worker",) * workers


@pytest.fixture
def sample(monkeypatch):
    monkeypatch.setattr(table, "STRATEGIES", {**STRATEGIES, "sample": Sample})


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_made_by_its_name_and_named_by_what_it_is(name):
    strategy = parse(name)
    assert isinstance(strategy, Strategy)
    assert isinstance(strategy, STRATEGIES[name])
    assert describe(strategy) == name


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_says_what_it_does_and_what_its_parameters_are_for(name):
    kind = STRATEGIES[name]
    assert kind.__doc__
    assert all(field.metadata.get("help") for field in dataclasses.fields(kind))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_frozen_and_has_a_program_for_each_of_its_roles(name):
    strategy = parse(name)
    roles = strategy.roles(4)
    assert roles[0] == "worker"
    assert list(roles) == sorted(roles, key=lambda role: role != "worker"), "workers come first"
    assert all(callable(getattr(strategy, role)) for role in roles)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        strategy.anything = 1


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sample", Sample()),
        ("sample:count=3,share=0.5,loud=yes,name=deep", Sample(count=3, share=0.5, loud=True, name="deep")),
        ("sample: count = 3 , loud=False", Sample(count=3)),
    ],
)
def test_words_become_parameters_of_their_types(sample, spec, expected):
    assert parse(spec) == expected


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("sample:count=1,count=2", refused("sample:count", "sample:count=1,count=2")),
        ("sample:count=1, count=1", refused("sample:count", "sample:count=1, count=1")),
        ("sample:count=", refused("sample:count", "sample:count=")),
        ("sample:name= ", refused("sample:name", "sample:name= ")),
        ("sample:", refused("strategy", "sample:")),
        ("sample:count=1,", refused("strategy")),
        ("sample:,count=1", refused("strategy")),
    ],
)
def test_a_parameter_is_given_once_and_has_a_value(sample, spec, refusal):
    with refusal:
        parse(spec)


@pytest.mark.parametrize("made", [Sample(), Sample(count=3), Sample(share=0.25, loud=True, name="deep")])
def test_the_words_of_a_strategy_make_it_again(sample, made):
    assert parse(describe(made)) == made


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("sample:count=many", refused("sample:count", "many")),
        ("sample:share=half", refused("sample:share", "half")),
        ("sample:loud=perhaps", refused("sample:loud", "perhaps")),
        ("sample:count", refused("sample:count", "sample:count")),
    ],
)
def test_a_bad_value_is_refused_with_its_type(sample, spec, refusal):
    with refusal:
        parse(spec)


def test_an_unknown_key_is_answered_with_the_nearest_and_all(sample):
    with unknown("parameter of sample", "cuont", nearest="count"):
        parse("sample:cuont=3")


def test_an_unknown_name_is_answered_with_all():
    with pytest.raises(UnknownNameError) as caught:
        parse("magic")
    assert all(name in str(caught.value) for name in STRATEGIES)


def test_a_strategy_is_returned_as_it_is():
    strategy = AllReduce(algorithm="ring")
    assert parse(strategy) is strategy


def test_dashes_and_underscores_are_one_in_keys(sample, monkeypatch):
    @dataclass(frozen=True)
    class Long:
        two_words: int = 1

        def roles(self, workers):
            return ()

    monkeypatch.setattr(table, "STRATEGIES", {"long": Long})
    assert parse("long:two-words=5") == Long(5)


def test_a_value_is_converted_also_where_annotations_are_types(monkeypatch):
    kind = dataclasses.make_dataclass(
        "Real", [("k", int, 1), ("share", float | None, None)], namespace={"roles": Sample.roles}
    )
    monkeypatch.setattr(table, "STRATEGIES", {"real": kind})
    assert parse("real:k=2,share=0.5") == kind(2, 0.5)


def test_a_parameter_without_a_default_must_be_given(monkeypatch):
    kind = dataclasses.make_dataclass("Real", [("k", int)], namespace={"roles": Sample.roles})
    monkeypatch.setattr(table, "STRATEGIES", {"real": kind})
    with refused("real:k", "real", remedy=has("real:k=")):
        parse("real")
