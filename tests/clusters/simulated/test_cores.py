"""Ranks that share cores: how long computations take that overlap."""

import pytest

from paceline.clusters.simulated.cores import Cores
from paceline.clusters.simulated.kernel import Kernel


class Timeline:
    """Cores with one core, and the times at which functions were called."""

    def __init__(self):
        self.kernel = Kernel()
        self.cores = Cores(self.kernel, float)
        self.calls = {}

    def at(self, time_s, action):
        self.kernel.at(time_s, lambda _: action(), None)

    def begin(self, name, seconds):
        self.cores.begin(name, seconds, self.note)

    def note(self, name):
        self.calls[name] = self.kernel.now

    def run(self):
        self.kernel.run([])
        return self.calls


def test_one_computation_takes_its_seconds():
    line = Timeline()
    line.begin("a", 3.0)
    assert line.run() == {"a": 3.0}


def test_two_computations_on_one_core_take_twice_as_long_while_they_overlap():
    line = Timeline()
    line.begin("a", 2.0)
    line.at(1.0, lambda: line.begin("b", 3.0))
    # From 1 on both run at half speed: "a" ends at 3, when "b" has done one of its three seconds.
    assert line.run() == pytest.approx({"a": 3.0, "b": 5.0})


def test_a_computation_that_is_dropped_makes_room():
    line = Timeline()
    line.begin("a", 2.0)
    line.begin("b", 2.0)
    line.at(2.0, lambda: line.cores.drop("b"))
    assert line.run() == pytest.approx({"a": 3.0})


def test_a_mark_is_reached_when_its_share_of_the_work_is_done():
    line = Timeline()
    line.begin("a", 4.0)
    line.begin("b", 4.0)
    line.cores.mark("a", 1.0, lambda _: line.note("quarter"))
    assert line.run() == pytest.approx({"quarter": 2.0, "a": 8.0, "b": 8.0})


def test_a_mark_of_work_that_is_done_is_reached_at_once():
    line = Timeline()
    line.begin("a", 1.0)
    line.at(2.0, lambda: line.cores.mark("a", 0.5, lambda _: line.note("late")))
    assert line.run() == {"a": 1.0, "late": 2.0}


def test_equal_computations_end_together():
    line = Timeline()
    for name in "abc":
        line.begin(name, 0.1)
    assert line.run() == pytest.approx(dict.fromkeys("abc", 0.3))
