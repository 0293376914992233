import math

import numpy as np
import pytest
from refusals import has, refused, unknown

from paceline.costs import Stragglers, parse_delay, parse_delays, parse_slow
from paceline.costs.times import Exponential, Pareto


def test_slow_ranks_are_read_with_their_factors() -> None:
    assert parse_slow("3:4x,1:2x") == {3: 4.0, 1: 2.0}
    assert parse_slow(" 3 : 4 , 0:0.5x") == {3: 4.0, 0: 0.5}


@pytest.mark.parametrize(
    "text", ["", "3", "3:", "3:x", "-1:2x", "3:4x,", "3:4y", "a:2", "3:4x,3:2x", "3:0", "3:-2"]
)
def test_what_names_no_slow_ranks_is_refused(text: str) -> None:
    with refused(has("slow")):
        parse_slow(text)


def test_a_delay_is_for_all_or_for_one_rank() -> None:
    assert parse_delay("exp:mean=50ms") == Exponential(0.05)
    assert parse_delay("2=pareto:min=10ms,shape=2") == {2: Pareto(0.01, 2)}
    with unknown("delay of rank 2", "expp"):
        parse_delay("2=expp:mean=1")


def test_repeated_delays_are_merged_by_rank() -> None:
    assert parse_delays([]) is None
    assert parse_delays(["exp:mean=50ms"]) == Exponential(0.05)
    assert parse_delays(["2=exp:1s", "0=exp:2s"]) == {2: Exponential(1), 0: Exponential(2)}


@pytest.mark.parametrize("texts", [["exp:1s", "exp:1s"], ["exp:1s", "2=exp:1s"], ["2=exp:1s", "exp:1s"]])
def test_a_delay_for_all_stands_alone(texts: list[str]) -> None:
    with refused("delay", texts):
        parse_delays(texts)


def test_a_rank_has_one_delay() -> None:
    with refused("delay", ["2=exp:1s", "2=exp:3s"]):
        parse_delays(["2=exp:1s", "2=exp:3s"])


def test_a_rank_that_is_not_named_is_as_fast_as_ever() -> None:
    stragglers = Stragglers(slow={3: 4.0}, delay={1: Exponential(1)})
    assert [stragglers.factor(rank) for rank in range(4)] == [1, 1, 1, 4]
    assert [stragglers.delay_of(rank) for rank in range(3)] == [None, Exponential(1), None]
    assert Stragglers().factor(0) == 1.0
    assert Stragglers().delay_of(0) is None


def test_one_delay_serves_every_rank() -> None:
    assert Stragglers(delay=Exponential(1)).delay_of(17) == Exponential(1)


def test_a_rank_that_the_run_has_not_is_refused_with_the_range() -> None:
    with refused("slow", 4, bound=has(0, 3)):
        Stragglers(slow={4: 2.0}).check(4)
    with refused("delay", 9, bound=has(0), remedy=has(1)):
        Stragglers(delay={9: Exponential(1)}).check(1)
    Stragglers(slow={3: 2.0, np.int64(2): 3.0}, delay=Exponential(1)).check(4)


@pytest.mark.parametrize("factor", [0, -1, math.inf, math.nan, 10**400, "4x", True, None])
def test_a_factor_is_a_finite_number_above_zero(factor: object) -> None:
    with refused("slow[3]", bound=has(0)):
        Stragglers(slow={3: factor})  # type: ignore[dict-item]


@pytest.mark.parametrize("rank", [-1, "3", 1.5, True])
def test_a_rank_is_a_whole_number_from_zero(rank: object) -> None:
    with refused("slow", rank):
        Stragglers(slow={rank: 2.0})  # type: ignore[dict-item]
    with refused("delay", rank):
        Stragglers(delay={rank: Exponential(1)})  # type: ignore[dict-item]


def test_a_delay_is_a_distribution() -> None:
    with refused("delay", "exp:mean=1", bound=has("pl.times")):
        Stragglers(delay="exp:mean=1")  # type: ignore[arg-type]
    with refused("delay[2]", 0.5, bound=has("pl.times")):
        Stragglers(delay={2: 0.5})  # type: ignore[dict-item]
    with refused("slow", [4.0]):
        Stragglers(slow=[4.0])  # type: ignore[arg-type]


def test_a_later_change_of_the_callers_mapping_changes_nothing() -> None:
    slow = {1: 2.0}
    stragglers = Stragglers(slow=slow)
    slow[1] = -5
    assert stragglers.factor(1) == 2.0
