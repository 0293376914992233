"""Strategies that are not of this package: registered, or known by an entry point."""

import sys
from dataclasses import dataclass

import pytest
from outside import install
from tasks import WORLDS, a_task

import paceline as pl
from paceline import strategies
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.strategies import STRATEGIES, describe, is_known, load_entry_points, parse, register
from paceline.strategies.all_reduce import AllReduce

STRATEGY_OF_OTHERS = """
from dataclasses import dataclass
from paceline.strategies.all_reduce import AllReduce

@dataclass(frozen=True, kw_only=True)
class Mine(AllReduce):
    algorithm: str = "ring"
    k: int = 1
"""


@pytest.fixture
def table(monkeypatch):
    """A table that a test may change."""
    monkeypatch.setattr(strategies, "STRATEGIES", dict(STRATEGIES))
    return strategies.STRATEGIES


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring(AllReduce):
    """All-reduce with another default."""

    algorithm: str = "ring"
    k: int = 1


@pytest.mark.parametrize("world", WORLDS)
def test_a_registered_strategy_trains_by_its_words_in_every_world(table, world):
    pl.register("mine", Ring)
    run = pl.train(a_task(), "mine:k=2", WORLDS[world](2), steps=2)
    assert run.strategy == "mine:k=2"
    expected = pl.train(a_task(), "all-reduce:algorithm=ring", WORLDS[world](2), steps=2)
    assert run.parameters.equal(expected.parameters)
    assert describe(Ring(k=3)) == "mine:k=3"


def test_a_registered_strategy_can_be_compared(table):
    pl.register("mine", Ring)
    found = pl.compare(a_task(), "sync,mine:k=2", WORLDS["simulated"](2), steps=2, baseline=False)
    assert [entry.name for entry in found.entries] == ["sync", "mine:k=2"]


@pytest.mark.parametrize("name", ["", "two words", "tab\t", "a:b", "a,b", "a=b", 3, None])
def test_a_name_that_no_words_could_mean_is_refused(table, name):
    with pytest.raises(ConfigurationError, match=r"name must be a word without blanks, colons.*; choose one"):
        register(name, Ring)


@pytest.mark.parametrize(("name", "owner"), [("sync", "sync.Sync"), ("mirrored", "all_reduce.AllReduce")])
def test_a_name_that_is_taken_is_refused(table, name, owner):
    with pytest.raises(
        ConfigurationError, match=rf"paceline.strategies.{owner} has it, but got '{name}'; choose"
    ):
        register(name, Ring)
    assert name not in table or table[name] is STRATEGIES[name]


class WithoutFields:
    def roles(self, workers):
        return ()


@dataclass
class WithoutRoles:
    pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Ring(), "must be a class, but got Ring.*; give the class"),
        (WithoutFields, "must be a dataclass, but got .*WithoutFields.*; put @dataclass"),
        (WithoutRoles, r"must have a method roles\(workers\), but got .*WithoutRoles.*; give it one"),
    ],
)
def test_a_class_that_is_no_strategy_is_refused(table, kind, message):
    with pytest.raises(ConfigurationError, match=f"strategy_class {message}"):
        register("mine", kind)
    assert "mine" not in table


def test_a_class_may_be_registered_again_as_a_cell_of_a_notebook_does(table):
    def cell():
        @dataclass(frozen=True, kw_only=True)
        class Mine(AllReduce):
            pass

        register("mine", Mine)
        return Mine

    cell()
    again = cell()
    assert table["mine"] is again
    with pytest.raises(ConfigurationError, match="must not be taken already"):
        register("mine", Ring)


@pytest.fixture
def installed(table, tmp_path, monkeypatch):
    """Installs a package for the time of a test."""

    def write_and_forget(*entry_points, **modules):
        install(tmp_path, *entry_points, **modules)
        monkeypatch.syspath_prepend(tmp_path)
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)  # another test's

    return write_and_forget


def test_an_installed_strategy_is_known_by_its_entry_point(table, installed):
    installed({"mine": "by_entry_point:Mine"}, by_entry_point=STRATEGY_OF_OTHERS)
    assert is_known("mine:k=2")
    assert "mine" not in table
    with pytest.raises(UnknownNameError, match="did you mean 'mine'"):
        parse("mien")
    strategy = parse("mine:k=2")
    assert (strategy.algorithm, strategy.k) == ("ring", 2)
    assert table["mine"] is type(strategy)


@pytest.mark.parametrize(
    ("name", "leads_to", "reason"),
    [
        ("mine", "nowhere:Mine", "importable from nowhere:Mine, but got .ModuleNotFoundError: No module"),
        ("mine", "broken:Gone", "importable from broken:Gone, but got .AttributeError"),
        ("mine", "raises:Mine", "but got .RuntimeError: it needs a GPU.; repair or uninstall the package"),
        ("mine", "broken:number", "strategy mine of the package sample must be a class, but got 3"),
        ("sync", "broken:Mine", "sync.Sync has it, but got 'sync'; choose another for broken.Mine"),
        ("my own", "broken:Mine", "must be a word without blanks"),
    ],
)
def test_a_broken_entry_point_is_told_and_harms_no_other(table, installed, name, leads_to, reason):
    sources = {
        "broken": f"{STRATEGY_OF_OTHERS}\nnumber = 3",
        "raises": "raise RuntimeError('it needs a GPU')",
    }
    installed({name: leads_to, "good": "broken:Mine"}, **sources)
    missing = load_entry_points()
    assert list(missing) == [name]
    with pytest.raises(ConfigurationError, match=reason):
        raise missing[name]
    assert parse("good:k=2").k == 2
    assert table["sync"] is STRATEGIES["sync"]
    if name == "mine":
        with pytest.raises(ConfigurationError, match=reason):
            parse("mine")


def test_a_name_of_two_packages_is_refused(table, installed):
    for package in ("one", "two"):
        installed({"mine": f"{package}:Mine"}, package, **{package: STRATEGY_OF_OTHERS})
    with pytest.raises(
        ConfigurationError, match="strategy mine must be of one package, but got 'one, two'; keep one"
    ):
        parse("mine")


def test_a_registered_name_goes_before_an_entry_point(table, installed):
    installed({"mine": "by_entry_point:Mine"}, by_entry_point=STRATEGY_OF_OTHERS)
    register("mine", Ring)
    assert type(parse("mine")) is Ring
    assert "mine" in load_entry_points()
