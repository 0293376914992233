import pytest
from refusals import has, refused

import paceline as pl


def test_a_time_is_seconds_or_text():
    assert pl.faults.Kill(1, at="5ms").at_s == pl.faults.Kill(1, 0.005).at_s == 0.005


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({}, refused("Kill")),
        ({"at": 1, "step": 1}, refused("Kill")),
        ({"at": "soon"}, refused("Kill.at", "soon")),
        ({"at": -1}, refused("Kill.at", -1, bound=has(0))),
        ({"step": -1}, refused("Kill.step", bound=has(0))),
        ({"step": 1.5}, refused("Kill.step", bound=has(0))),
        ({"rank": -1, "at": 1}, refused("Kill.rank", bound=has(0))),
        ({"rank": True, "at": 1}, refused("Kill.rank", bound=has(0))),
    ],
)
def test_what_names_no_rank_or_no_moment_is_refused(arguments, refusal):
    with refusal:
        pl.faults.Kill(**({"rank": 1} | arguments))


def test_a_fault_reads_as_a_sentence():
    assert str(pl.faults.Kill(2, step=3)) == "rank 2 killed in step 3"
    assert str(pl.faults.Kill(2, at="50us")) == "rank 2 killed at 50 µs"
