import numpy as np
import pytest

from paceline.costs import times
from paceline.costs.measured import Measured
from paceline.costs.prices import Given, Pass, Work, ready_shares
from paceline.costs.stragglers import Stragglers

EVEN = Stragglers(slow={}, delay=None)


def price(pricing, rank=0, stragglers=EVEN):
    return pricing.of_rank(rank, stragglers, np.random.default_rng(3))


def test_what_is_given_is_a_draw_for_each_gradient_whatever_its_samples():
    distribution = times.Exponential(0.01)
    drawn = price(Given(distribution))
    expected = distribution.sample(np.random.default_rng(3), 3)
    assert [drawn.seconds(Work.GRADIENT, 0, samples) for samples in (1, 100, 7)] == expected.tolist()
    assert drawn.seconds(Work.UPDATE, 0, 0) == 0.0


def test_prices_of_equally_slow_ranks_are_the_same_unless_something_is_drawn():
    slow, delayed = Stragglers(slow={0: 2.0}, delay=None), Stragglers(slow={}, delay=times.Exponential(0.1))
    assert price(Measured(3.0, 1.5), stragglers=slow).fixed == 2.0
    assert price(Measured(3.0, 1.5), stragglers=delayed).fixed is None
    assert price(Given(times.Exponential(1.0))).fixed is None


@pytest.mark.parametrize("pricing", [Given(times.Constant(1.0)), Measured(0.5, 0.25)])
def test_a_slow_rank_takes_as_many_times_as_long_and_a_delay_comes_on_top(pricing):
    stragglers = Stragglers(slow={1: 3.0}, delay={1: times.Constant(0.5)})
    assert price(pricing, 0, stragglers).seconds(Work.GRADIENT, 0, 2) == 1.0
    assert price(pricing, 1, stragglers).seconds(Work.GRADIENT, 0, 2) == 3.5


def test_a_pass_through_a_segment_takes_its_share_of_a_gradient():
    forward, backward = (Pass(work, 0.5, 2, 8) for work in (Work.FORWARD, Work.BACKWARD))
    given = price(Given(times.Constant(12.0)))  # of a slice of eight samples
    assert [given.pass_seconds(one) for one in (forward, backward)] == pytest.approx([0.5, 1.0])
    measured = price(Measured(3.0, 1.5))  # 6 s of two samples
    assert [measured.pass_seconds(one) for one in (forward, backward)] == pytest.approx([1.0, 2.0])
    parts = [Pass(work, 0.5, 2, 8) for work in (Work.INPUTS, Work.WEIGHTS)]
    for of_rank in (given, measured):
        assert sum(map(of_rank.pass_seconds, parts)) == pytest.approx(of_rank.pass_seconds(backward))


def test_phases_are_what_each_pass_takes_whatever_its_segment_and_samples():
    phases = price(Given(times.Phases("4ms", "3ms", "2ms")), 1, Stragglers(slow={1: 2.0}, delay=None))
    works = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS, Work.BACKWARD)
    found = [phases.pass_seconds(Pass(work, 0.1, 3, 8)) for work in works]
    assert found == pytest.approx([0.008, 0.006, 0.004, 0.010])
    assert phases.seconds(Work.GRADIENT, 0, 8) == pytest.approx(0.018)
    assert phases.seconds(Work.UPDATE, 0, 8) == 0


def test_phases_of_a_stage_in_several_segments_are_shared_by_them():
    phases = price(Given(times.Phases("4ms", "3ms", "2ms")))
    parts = [phases.pass_seconds(Pass(Work.FORWARD, 0.1, 3, 8, stage_share=share)) for share in (0.25, 0.75)]
    assert parts == pytest.approx([0.001, 0.003])


def test_a_delay_is_one_of_each_micro_batch_whatever_the_segments_of_its_stage():
    late = Stragglers(slow={}, delay=times.Constant(1.0))
    for pricing in (Measured(0.0, 0.0), Given(times.Phases(0, 0, 0))):
        of_rank = price(pricing, 0, late)
        works = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS, Work.BACKWARD)
        assert [of_rank.pass_seconds(Pass(work, 1.0, 1, 1)) for work in works] == [1.0, 0.0, 0.0, 0.0]
        in_segments = [
            of_rank.pass_seconds(Pass(Work.FORWARD, 0.1, 1, 1, stage_share=s)) for s in (0.25, 0.75)
        ]
        assert in_segments == [0.25, 0.75]


def test_the_buckets_become_ready_during_backward_which_is_two_thirds_of_the_time():
    assert ready_shares([0.5, 0.25, 0.25]) == pytest.approx([2 / 3, 5 / 6, 1.0])


@pytest.mark.parametrize("work", [Work.BACKWARD, Work.INPUTS])
def test_a_backward_that_computes_again_takes_a_forward_more(work):
    pricings = Given(times.Constant(12.0)), Measured(3.0, 1.5), Given(times.Phases("4ms", "3ms", "2ms"))
    for of_rank in map(price, pricings):
        plain, again, forward = (
            of_rank.pass_seconds(one)
            for one in (Pass(work, 0.5, 2, 8), Pass(work, 0.5, 2, 8, True), Pass(Work.FORWARD, 0.5, 2, 8))
        )
        assert again == pytest.approx(plain + forward)


@pytest.mark.parametrize(
    ("pricing", "charges"),
    [
        (Given(times.Exponential(1.0)), False),
        (Given(times.Phases("18ms", "18ms", "9ms")), False),
        (Measured(0.0, 0.0, update_s=0.5), True),
    ],
)
def test_updates_have_a_price_unless_the_times_are_given(pricing, charges):
    priced = price(pricing)
    assert priced.charges_updates is charges
    assert (priced.seconds(Work.UPDATE, 0, 8) > 0) is charges


@pytest.mark.parametrize("delay", [None, times.Exponential(0.1)])
def test_times_drawn_in_advance_and_not_used_are_the_next_ones_of_a_resumed_rank(delay):
    def drawn(rng):
        return Given(times.Exponential(1.0)).of_rank(0, Stragglers(slow={}, delay=delay), rng)

    rng = np.random.default_rng(0)
    first, whole = drawn(rng), drawn(np.random.default_rng(0))
    expected = [whole.seconds(Work.GRADIENT, 0, 1) for _ in range(80)]
    assert [first.seconds(Work.GRADIENT, 0, 1) for _ in range(40)] == expected[:40]
    resumed = drawn(rng)
    resumed.put_back(first.unused())
    assert [resumed.seconds(Work.GRADIENT, 0, 1) for _ in range(40)] == expected[40:]
