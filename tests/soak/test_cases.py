"""A case is made from its number alone, and can be run."""

import subprocess
import sys

import pytest

from paceline.strategies import STRATEGIES, parse
from soak.cases import CLUSTERS, GROUP, fuzz_of, make_case

MANY = range(1500)
CASES = [make_case(seed) for seed in MANY]


def test_a_number_gives_the_same_case_in_every_process():
    program = "from soak.cases import make_case; print([make_case(seed) for seed in range(50)])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str(CASES[:50])


def test_every_strategy_and_every_cluster_comes_up():
    assert {case.word for case in CASES[:300]} == set(STRATEGIES)
    assert {case.cluster for case in CASES[:300]} == set(CLUSTERS)


def test_models_are_below_and_above_the_lending_threshold_and_larger_than_a_ring():
    nbytes = [7 * case.hidden * (8 if case.dtype == "float64" else 4) for case in CASES]
    assert min(nbytes) < 2**16 < 2**22 < max(nbytes)
    assert any(2**16 < size < 2**22 for size in nbytes)


@pytest.mark.parametrize("kind", ["kill", "pause", "stop"])
def test_a_fault_hits_a_rank_that_the_run_has(kind):
    hit = [case for case in CASES if case.fault and case.fault.kind == kind]
    assert hit
    assert all(0 <= case.fault.rank < len(case.roles) for case in hit)


def test_every_case_is_one_that_its_strategy_takes():
    for case in CASES:
        assert len(parse(case.spec).roles(case.workers)) >= 1


def test_cases_with_batch_norm_have_no_slice_of_one_sample():
    normalised = [case for case in CASES if case.batch_norm]
    assert normalised
    assert all(case.batch_size >= 2 * case.workers for case in normalised)
    assert not any("batch=" in case.spec for case in normalised)


def test_a_third_of_the_groups_is_fuzzed_each_as_a_whole():
    values = [fuzz_of(seed) for seed in range(200 * GROUP)]
    groups = [set(values[first : first + GROUP]) for first in range(0, len(values), GROUP)]
    assert all(len(group) == 1 for group in groups)
    assert 40 < sum(group != {None} for group in groups) < 95


def test_the_description_names_what_is_tried():
    case = CASES[7]
    assert f"spec: {case.spec}" in case.describe()
    assert f"seed: {case.seed}" in case.describe()
