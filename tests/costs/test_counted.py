from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from paceline.costs import times
from paceline.costs.counted import Counted, Operations
from paceline.costs.devices import Device
from paceline.costs.prices import Pass, Work
from paceline.costs.stragglers import Stragglers

TOY = Device(name="toy", flops=100.0, efficiency=0.5, memory_bytes_per_s=10.0, memory_bytes=1)
EVEN = Stragglers(slow={}, delay=None)


def price(stragglers=EVEN, **words):
    counted = Counted(TOY, lambda: Operations(50.0, 10.0), **words)  # 2 s a sample
    return counted.of_rank(0, stragglers, np.random.default_rng(0))


def test_a_gradient_is_worth_three_forward_passes_and_four_with_recomputation():
    assert price().seconds(Work.GRADIENT, 0, 5) == 3 * 5 * 2.0
    assert price(recompute=True).seconds(Work.GRADIENT, 0, 5) == 4 * 5 * 2.0


def test_a_pass_is_worth_its_segments_operations_times_its_samples():
    works = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS, Work.BACKWARD)
    passes = [Pass(work, 0.1, 4, 8, flops=100.0, moved_bytes=5.0) for work in works]  # 2.5 s a sample
    assert [price().pass_seconds(one) for one in passes] == [10.0, 10.0, 10.0, 20.0]


def test_a_backward_pass_that_recomputes_costs_a_forward_pass_more():
    again = Pass(Work.BACKWARD, 0.1, 4, 8, recomputes=True, flops=100.0, moved_bytes=5.0)
    assert price().pass_seconds(again) == 30.0


def test_weights_are_read_once_in_a_pass_and_their_gradients_are_accumulated():
    words = {"flops": 50.0, "weight_bytes": 10.0, "gradient_bytes": 20.0}
    works = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS, Work.BACKWARD)
    for samples in (1, 4):
        found = [price().pass_seconds(Pass(work, 0.1, samples, 8, **words)) for work in works]
        assert found == [samples + 1.0, samples + 1.0, samples + 4.0, 2 * samples + 5.0]
    again = Pass(Work.BACKWARD, 0.1, 4, 8, recomputes=True, **words)
    assert price().pass_seconds(again) == 2 * 4 + 5.0 + 4 + 1.0


def test_an_update_moves_each_parameter_seven_times():
    assert price().seconds(Work.UPDATE, 0, 40) == pytest.approx(7 * 40 / 10)


def test_a_slow_rank_takes_longer_and_a_delay_is_one_of_each_micro_batch():
    late = price(Stragglers(slow={0: 2.0}, delay=times.Constant(1.0)))
    assert late.seconds(Work.GRADIENT, 0, 1) == 3 * 2.0 * 2.0 + 1.0
    found = [late.pass_seconds(Pass(work, 1.0, 1, 1, flops=50.0)) for work in (Work.FORWARD, Work.BACKWARD)]
    assert found == [1.0 * 2 + 1.0, 2.0 * 2]


def test_the_model_is_counted_only_if_it_is_asked_for():
    def fail():
        raise AssertionError

    of_rank = Counted(TOY, fail).of_rank(0, EVEN, np.random.default_rng(0))
    assert of_rank.pass_seconds(Pass(Work.FORWARD, 1.0, 1, 1, flops=50.0)) == 1.0
    assert (of_rank.unused(), of_rank.put_back([])) == ([], None)


def test_a_pass_takes_at_least_the_time_in_which_its_operations_are_started():
    slow = replace(TOY, launch="2s")
    of_rank = Counted(slow, lambda: Operations(50.0, 10.0, 10)).of_rank(0, EVEN, np.random.default_rng(0))
    works = (Work.FORWARD, Work.BACKWARD, Work.INPUTS)
    passes = [Pass(work, 0.1, samples, 8, flops=50.0, launches=5) for samples in (1, 20) for work in works]
    assert [of_rank.pass_seconds(one) for one in passes] == [10.0, 10.0, 5.0, 20.0, 40.0, 20.0]
    assert of_rank.seconds(Work.GRADIENT, 0, 1) == 2 * 20.0


def test_other_operations_reach_a_part_of_the_memory_bandwidth():
    assert replace(TOY, memory_efficiency=0.5).seconds(0.0, 10.0) == 2.0
    with refused("Device.memory_efficiency", 1.5):
        replace(TOY, memory_efficiency=1.5)
