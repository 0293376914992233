"""Saved calibrations, and the costs of numbers of ranks that were not measured."""

import dataclasses
import json

import pytest
from refusals import has, refused

import paceline as pl
from paceline.costs.calibrated_costs import ComputeCosts, LinkCosts
from paceline.costs.calibration import Calibration
from paceline.costs.pass_shares import PassShares
from paceline.errors import DamagedError
from paceline.system.environment import machine


def link(ranks=2, **changes):
    given = {"kind": "tcp", "latency_s": 1e-4, "message_s": 5e-5, "bytes_per_s": 1e9}
    return LinkCosts(ranks=ranks, sizes_bytes=(64, 10**6), seconds=(1.5e-4, 1.15e-3), **(given | changes))


def calibration(**changes):
    compute = ComputeCosts(
        threads=1,
        slowdown={1: 1.0, 2: 1.1, 4: 2.0},
        fixed_s=0.01,
        per_sample_s=1e-4,
        update_s=0.002,
        update_bytes=400,
        samples=(1, 100),
        seconds=(0.0101, 0.02),
        passes=PassShares(ends=(1, 3), forward=(0.2, 0.2), backward=(0.2, 0.4)),
    )
    given = {"machine": machine() | {"cores": "2"}, "workers": 4, "compute": (compute,), "links": (link(),)}
    return Calibration(**(given | changes))


COMPUTE = calibration().as_dict()["compute"][0]


def test_a_saved_calibration_is_loaded_with_all_its_figures(tmp_path):
    made = calibration(task={"model": "7 parameters", "loss": "mse_loss"}, start_s=0.5)
    made.save(tmp_path / "here.json")
    assert pl.Calibration.load(tmp_path / "here.json") == made


def test_an_infinite_bandwidth_is_loaded_as_such(tmp_path):
    made = calibration(links=(link(bytes_per_s=float("inf")),))
    made.save(tmp_path / "here.json")
    assert Calibration.load(tmp_path / "here.json").links[0].bytes_per_s == float("inf")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"format": 99}, "99"),
        ({"machine": {"processor": "x"}}, "machine"),
        ({"machine": {"processor": "x", "cores": "many"}}, "machine"),
        ({"compute": []}, "compute"),
        ({"workers": 0}, "workers"),
        ({"start_s": -1.0}, "start_s"),
        ({"links": [{"kind": "tcp"}]}, "bytes_per_s"),
        ({"compute": [{"threads": 1, "slowdown": {}}]}, "slowdown"),
        ({"compute": [{"threads": 1, "slowdown": {"1": 0.0}}]}, "slowdown"),
        (
            {"compute": [COMPUTE | {"passes": {"ends": [2, 1], "forward": [1, 1], "backward": [1, 1]}}]},
            "passes",
        ),
        ({"compute": [COMPUTE | {"passes": {"ends": [1, 2], "forward": [1], "backward": [1, 1]}}]}, "passes"),
    ],
)
def test_a_file_with_a_defect_is_refused_with_the_name_of_the_field(tmp_path, change, fact):
    path = tmp_path / "here.json"
    path.write_text(json.dumps(calibration().as_dict() | change))
    with pytest.raises(DamagedError) as caught:
        Calibration.load(path)
    assert (caught.value.file, has(fact)) == ("here.json", caught.value.reason)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "task.py").write_text("print()")
    for name in ("task.py", "missing.json"):
        with pytest.raises(DamagedError):
            Calibration.load(tmp_path / name)


def test_a_calibration_of_another_machine_names_what_differs():
    elsewhere = calibration(machine=machine() | {"processor": "Other", "cores": "64"})
    assert not elsewhere.is_of_this_machine
    assert has("Other") == str(elsewhere.differences)
    assert has("Other", 64) == elsewhere.name


def test_other_versions_do_not_make_another_machine():
    older = calibration(machine=machine() | {"torch": "1.0"})
    assert older.is_of_this_machine
    assert has("torch", "1.0") == str(older.differences)


@pytest.mark.parametrize(("at_once", "factor"), [(1, 1.0), (2, 1.1), (3, 1.55), (4, 2.0), (8, 4.0)])
def test_ranks_between_and_beyond_those_measured_share_the_cores(at_once, factor):
    assert calibration().compute[0].factor(at_once) == pytest.approx(factor)


def test_threads_that_were_not_measured_are_refused():
    with refused("calibration", 2):
        calibration().compute_of(1)


def test_more_workers_than_measured_are_refused_while_cores_were_idle():
    wide = calibration(machine=machine() | {"cores": "64"})
    with refused("workers", 8, bound=has(4)):
        wide.compute_of(8, threads=1)


def test_more_workers_than_measured_are_possible_if_all_cores_were_busy():
    assert calibration().compute_of(8).threads == 1


def test_a_link_is_that_of_the_next_larger_number_of_ranks():
    made = calibration(links=(link(2, latency_s=1.0), link(4, latency_s=2.0)))
    assert [made.link_of("tcp", ranks).latency_s for ranks in (1, 2, 3, 4, 9)] == [1, 1, 2, 2, 2]
    assert made.link_of("shared-memory", 2) == pl.Link.ideal()


def test_residuals_are_the_largest_relative_errors_of_the_fits():
    made = calibration()
    assert made.links[0].residual == pytest.approx(0.0, abs=1e-3)
    worse = dataclasses.replace(made.compute[0], seconds=(0.0101, 0.04))
    assert worse.residual == pytest.approx(0.5)


def test_the_text_has_the_figures():
    assert has("tcp", "100 µs", "8 Gbit/s", "4 at once 2.00") == str(calibration())


@pytest.mark.parametrize(
    ("samples", "seconds"), [(1, 0.01), (5, 0.03), (10, 0.055), (55, 0.145), (200, 0.435)]
)
def test_gradients_between_two_measured_sizes_are_on_the_line_through_them(samples, seconds):
    """Seconds that are not a line: 0.005 s a sample up to 10 samples, then 0.002 s."""
    measured = {"samples": (1, 10, 100), "seconds": (0.01, 0.055, 0.235), "fixed_s": 9.0, "per_sample_s": 9.0}
    costs = dataclasses.replace(calibration().compute[0], **measured)
    fixed_s, per_sample_s = costs.line_near(samples)
    assert fixed_s + per_sample_s * samples == pytest.approx(seconds)


def test_without_a_usable_line_between_two_sizes_the_fitted_one_counts():
    falling = {"samples": (1, 10), "seconds": (0.5, 0.4), "fixed_s": 0.4, "per_sample_s": 0.001}
    costs = dataclasses.replace(calibration().compute[0], **falling)
    assert costs.line_near(5) == (0.4, 0.001)
    single = dataclasses.replace(costs, samples=(4,), seconds=(0.5,))
    assert single.line_near(5) == (0.4, 0.001)
