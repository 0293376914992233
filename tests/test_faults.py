import pytest

import paceline as pl
from paceline.errors import ConfigurationError


def test_a_time_is_seconds_or_text():
    assert pl.faults.Kill(1, at="5ms").at_s == pl.faults.Kill(1, 0.005).at_s == 0.005


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "Kill must have one of at and step"),
        ({"at": 1, "step": 1}, "Kill must have one of at and step"),
        ({"at": "soon"}, "Kill.at must be a time"),
        ({"at": -1}, "Kill.at must be finite and at least 0 seconds"),
        ({"step": -1}, "Kill.step must be a whole number from 0"),
        ({"step": 1.5}, "Kill.step must be a whole number from 0"),
        ({"rank": -1, "at": 1}, "Kill.rank must be a whole number from 0"),
        ({"rank": True, "at": 1}, "Kill.rank must be a whole number from 0"),
    ],
)
def test_what_names_no_rank_or_no_moment_is_refused(arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        pl.faults.Kill(**({"rank": 1} | arguments))


def test_a_fault_reads_as_a_sentence():
    assert str(pl.faults.Kill(2, step=3)) == "rank 2 killed in step 3"
    assert str(pl.faults.Kill(2, at="50us")) == "rank 2 killed at 50 µs"
