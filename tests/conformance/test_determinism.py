"""Two simulations with one seed take the same course; another seed takes another."""

import pytest
import torch
from conformance.cases import REPRODUCIBLE, SPECS, STEPS, make_task
from tasks import simulated

import paceline as pl

UNEVEN = {"compute": pl.times.Exponential(0.1), "delay": pl.times.Pareto(0.01, 1.5), "slow": {0: 1.5}}


def traced(folder, spec, seed):
    run = pl.train(make_task(), spec, simulated(3, **UNEVEN), steps=STEPS, seed=seed)
    path = folder / "trace.json"
    run.trace.save(path)
    return run, path.read_bytes()


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_seed_gives_the_same_trace_byte_for_byte(spec, tmp_path):
    (first, first_trace), (second, second_trace) = traced(tmp_path, spec, 7), traced(tmp_path, spec, 7)
    assert first_trace == second_trace
    assert first.history == second.history
    assert torch.equal(first.parameters, second.parameters)


@pytest.mark.parametrize("spec", SPECS)
def test_another_seed_gives_another_trace_and_other_weights(spec, tmp_path):
    (first, first_trace), (second, second_trace) = traced(tmp_path, spec, 7), traced(tmp_path, spec, 8)
    assert first_trace != second_trace
    assert not torch.equal(first.parameters, second.parameters)


# Of all of them test_same_bits.py says that each run in processes gives the bits of a simulation.
@pytest.mark.parametrize("spec", REPRODUCIBLE[::8])
def test_the_same_seed_gives_the_same_bits_in_processes(spec):
    first, second = (
        pl.train(make_task("batch-not-divisible", "adam"), spec, pl.Local(workers=3), steps=STEPS)
        for _ in range(2)
    )
    assert torch.equal(first.parameters, second.parameters)
