import numpy as np
import pytest

from paceline.planner.steady import steady_step_s


def test_equal_cycles_end_the_simulation():
    asked = []

    def simulate(updates):
        asked.append(updates)
        return np.cumsum([5.0] + [1.0, 3.0] * updates)[:updates]

    assert steady_step_s(simulate, 2, cycles=(4, 16), varies=False) == pytest.approx(2.0)
    assert asked == [10]


def test_a_simulation_without_a_steady_state_is_extended_and_averaged():
    asked = []

    def simulate(updates):
        asked.append(updates)
        return np.cumsum(1 + np.arange(updates) % 2)

    assert steady_step_s(simulate, 1, cycles=(4, 17), varies=False) == pytest.approx(1.5, rel=0.05)
    assert asked == [6, 19]
