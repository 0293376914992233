import pytest

import paceline as pl
from paceline.bench.report import Report, make_row
from paceline.bench.spec import Spec
from paceline.bench.texts import bandwidth_unit, facts

SPEC = Spec(
    pattern="all-reduce", workers=2, begin_bytes=1024, end_bytes=4096, factor=2, algorithms=("ring", "tree")
)
MACHINE = {"cores": 2, "load": 0.5, "torch": "2.9"}


def report(times_s, **changes):
    """Seconds of ring and tree for each size."""
    pairs = zip(SPEC.lengths, times_s, strict=True)
    rows = [
        make_row(SPEC, n, name, [s])
        for n, pair in pairs
        for name, s in zip(("ring", "tree"), pair, strict=True)
    ]
    return Report(**({"spec": SPEC, "where": "here", "rows": tuple(rows), "machine": MACHINE} | changes))


def test_winners_are_told_by_ranges_of_sizes():
    told = facts(report([(1, 2), (1, 2), (2, 1)]))["fastest"]
    assert told == "ring from 1 KiB to 2 KiB, tree at 4 KiB"


def test_the_machine_and_its_load_are_told():
    assert facts(report([(1, 2)] * 3))["machine"] == "2 cores, load 0.5 before, torch 2.9"


def test_a_simulation_tells_what_it_left_out():
    spec = Spec(pattern="all-reduce", simulated=True, begin_bytes=4, end_bytes=4)
    lines = facts(
        Report(spec=spec, where="there", rows=(make_row(spec, 1, "ring", [1.0]),), link=pl.Link.ideal())
    )
    assert "native (torch.distributed has no virtual time)" in lines["left out"]


@pytest.mark.parametrize(("seconds", "unit"), [(1e-3, "MB/s"), (1e-9, "GB/s"), (0.0, "MB/s")])
def test_the_unit_of_bandwidth_fits_the_largest(seconds, unit):
    assert bandwidth_unit(report([(seconds, seconds)] * 3))[0] == unit


def test_busbw_is_algbw_times_the_patterns_factor():
    spec = Spec(pattern="all-reduce", workers=4, begin_bytes=4000, end_bytes=4000)
    row = make_row(spec, 1000, "ring", [2.0])
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (2000.0, 3000.0)


def test_the_median_of_an_even_number_of_calls_is_between_the_middle_two():
    assert make_row(SPEC, 4, "ring", [4.0, 1.0, 3.0, 2.0]).seconds == 2.5
