"""Strategies of other packages: registered, or found by an entry point."""

import sys
from dataclasses import dataclass

import pytest
from outside import install
from refusals import has, refused, unknown
from tasks import WORLDS, a_task

import paceline as pl
from paceline.strategies import STRATEGIES, describe, is_known, load_entry_points, parse, register
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.registry import table as table_module

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
    monkeypatch.setattr(table_module, "STRATEGIES", dict(STRATEGIES))
    return table_module.STRATEGIES


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
    with refused("name", name):
        register(name, Ring)


@pytest.mark.parametrize(("name", "owner"), [("sync", "sync.Sync"), ("mirrored", "all_reduce.AllReduce")])
def test_a_name_that_is_taken_is_refused(table, name, owner):
    with refused("name", name, bound=has(f"paceline.strategies.{owner}")):
        register(name, Ring)
    assert name not in table or table[name] is STRATEGIES[name]


class WithoutFields:
    def roles(self, workers):
        return ()


@dataclass
class WithoutRoles:
    pass


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (Ring(), refused("strategy_class")),
        (WithoutFields, refused("strategy_class", has("WithoutFields"))),
        (WithoutRoles, refused("strategy_class", has("WithoutRoles"))),
    ],
)
def test_a_class_that_is_no_strategy_is_refused(table, kind, refusal):
    with refusal:
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
    with refused("name", "mine"):
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
    with unknown("strategy", "mien", nearest="mine"):
        parse("mien")
    strategy = parse("mine:k=2")
    assert (strategy.algorithm, strategy.k) == ("ring", 2)
    assert table["mine"] is type(strategy)


BROKEN = has("mine", "sample")  # the strategy and its package


@pytest.mark.parametrize(
    ("name", "leads_to", "refusal"),
    [
        ("mine", "nowhere:Mine", refused(BROKEN, has("ModuleNotFoundError"), bound=has("nowhere:Mine"))),
        ("mine", "broken:Gone", refused(BROKEN, has("AttributeError"), bound=has("broken:Gone"))),
        ("mine", "raises:Mine", refused(BROKEN, "RuntimeError: it needs a GPU")),
        ("mine", "broken:number", refused(BROKEN, 3)),
        (
            "sync",
            "broken:Mine",
            refused(has("sync", "sample"), "sync", bound=has("sync.Sync"), remedy=has("broken.Mine")),
        ),
        ("my own", "broken:Mine", refused(has("my own", "sample"), "my own")),
    ],
)
def test_a_broken_entry_point_is_told_and_harms_no_other(table, installed, name, leads_to, refusal):
    sources = {
        "broken": f"{STRATEGY_OF_OTHERS}\nnumber = 3",
        "raises": "raise RuntimeError('it needs a GPU')",
    }
    installed({name: leads_to, "good": "broken:Mine"}, **sources)
    missing = load_entry_points()
    assert list(missing) == [name]
    with refusal:
        raise missing[name]
    assert parse("good:k=2").k == 2
    assert table["sync"] is STRATEGIES["sync"]
    if name == "mine":
        with refusal:
            parse("mine")


def test_a_name_of_two_packages_is_refused(table, installed):
    for package in ("one", "two"):
        installed({"mine": f"{package}:Mine"}, package, **{package: STRATEGY_OF_OTHERS})
    with refused("strategy mine", "one, two"):
        parse("mine")


def test_a_registered_name_goes_before_an_entry_point(table, installed):
    installed({"mine": "by_entry_point:Mine"}, by_entry_point=STRATEGY_OF_OTHERS)
    register("mine", Ring)
    assert type(parse("mine")) is Ring
    assert "mine" in load_entry_points()
