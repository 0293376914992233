"""Two simulations with the same seed are identical. Another seed gives a different run."""

import pytest
import torch
from conformance.cases import REPRODUCIBLE, SPECS, STEPS, make_task

import paceline as pl
from paceline.testing.checks import (
    check_another_seed_gives_another_course,
    check_the_same_seed_gives_the_same_course,
)


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_seed_gives_the_same_trace_byte_for_byte(spec, tmp_path):
    check_the_same_seed_gives_the_same_course(spec, tmp_path)


@pytest.mark.parametrize("spec", SPECS)
def test_another_seed_gives_another_trace_and_other_weights(spec, tmp_path):
    check_another_seed_gives_another_course(spec, tmp_path)


# test_same_bits.py shows that a run in processes gives the bits of a simulation.
@pytest.mark.parametrize("spec", REPRODUCIBLE[::8])
def test_the_same_seed_gives_the_same_bits_in_processes(spec):
    first, second = (
        pl.train(make_task("batch-not-divisible", "adam"), spec, pl.Local(workers=3), steps=STEPS)
        for _ in range(2)
    )
    assert torch.equal(first.parameters, second.parameters)
