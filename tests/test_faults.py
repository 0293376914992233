import pytest
from refusals import has, refused, unknown

import paceline as pl
from paceline import faults


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
    assert str(faults.Pause(1, at=2, seconds=5)) == "rank 1 paused at 2 s for 5 s"
    assert str(faults.Cut([0, 1], at=6, seconds=3)) == "rank 0, 1 cut off at 6 s for 3 s"
    assert str(faults.Slow(3, factor=4, step=1, seconds=2)) == "rank 3 4x as slow in step 1 for 2 s"


@pytest.mark.parametrize(
    ("kind", "arguments", "refusal"),
    [
        (faults.Pause, {"rank": 1, "at": 1, "seconds": -1}, refused("Pause.seconds", -1)),
        (faults.Slow, {"rank": 1, "at": 1, "factor": 0.5}, refused("Slow.factor", 0.5, bound=has(1))),
        (faults.Slow, {"rank": 1, "factor": 2}, refused("Slow")),
        (faults.Cut, {"ranks": [], "at": 1}, refused("Cut.ranks", [])),
        (faults.Cut, {"ranks": "0+0", "at": 1}, refused("Cut.ranks", "0+0")),
        (faults.Cut, {"ranks": "0+one", "at": 1}, refused("Cut.ranks", "one")),
        (faults.Cut, {"ranks": [0], "at": 1, "seconds": -3}, refused("Cut.seconds", -3)),
        (faults.Random, {"mean": 0}, refused("Random.mean", 0.0)),
        (faults.Random, {"mean": "1s", "seed": -1}, refused("Random.seed", -1)),
    ],
)
def test_a_fault_without_meaning_is_refused(kind, arguments, refusal):
    with refusal:
        kind(**arguments)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:rank=2,at=3s", faults.Kill(2, at="3s")),
        ("pause:rank=1,step=40,seconds=5", faults.Pause(1, step=40, seconds="5")),
        ("slow:rank=3,factor=1.5,at=2s,seconds=10s", faults.Slow(3, factor=1.5, at="2s", seconds="10s")),
        ("cut:ranks=0+1,at=6s,seconds=3", faults.Cut([0, 1], at="6s", seconds="3")),
        ("random:mean=10min,seed=3", faults.Random("10min", seed=3)),
    ],
)
def test_text_describes_the_same_fault(text, fault):
    assert faults.parse(text) == fault


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("explode:rank=1", unknown("fault", "explode")),
        ("kill:rank=1,when=3", unknown("a key of Kill", "when")),
        ("kill:at=3", refused("fault", "kill:at=3", bound=has("rank"))),
        ("cut:ranks=1", refused("fault", "cut:ranks=1", bound=has("at"))),
        ("kill:rank", refused("fault", "kill:rank")),
        ("kill:rank=1,rank=2,at=3", refused("fault")),
        ("kill:rank=one,at=3", refused("Kill.rank", "one")),
        ("kill:rank=1.5,at=3", refused("Kill.rank", 1.5)),
    ],
)
def test_text_that_describes_no_fault_is_refused(text, refusal):
    with refusal:
        faults.parse(text)


def test_random_faults_kill_each_rank_once_and_depend_on_the_seed_only():
    kills = faults.faults_of_ranks([faults.Random(mean=10, seed=4)], ranks=5)
    assert sorted(kill.rank for kill in kills) == [0, 1, 2, 3, 4]
    assert [kill.at_s for kill in kills] == sorted(kill.at_s for kill in kills)
    assert kills == faults.faults_of_ranks([faults.Random(mean=10, seed=4)], ranks=5)
    assert kills != faults.faults_of_ranks([faults.Random(mean=10, seed=5)], ranks=5)
    many = faults.Random(mean=10).kills(4000)
    assert many[-1].at_s / 4000 == pytest.approx(10, rel=0.05)


def test_a_trace_is_a_list_of_removals_and_additions(tmp_path):
    (tmp_path / "spot.csv").write_text("60,remove,2\n\n90.5, add\n")
    found = pl.faults.trace(tmp_path / "spot.csv", scale=0.1)
    assert found == [faults.Kill(2, at=6.0), faults.Join(at=90.5 * 0.1)]


@pytest.mark.parametrize("line", ["60,remove", "60,add,2", "soon,add", "60,remove,x", "60"])
def test_a_line_of_a_trace_that_says_nothing_is_refused(line, tmp_path):
    (tmp_path / "spot.csv").write_text(f"1,add\n{line}\n")
    with refused("trace", line, bound=has(2)):
        pl.faults.trace(tmp_path / "spot.csv")


def test_a_join_names_no_rank():
    assert faults.parse("join:step=3") == faults.Join(step=3)
    assert str(faults.Join(at=2)) == "a lost rank joins at 2 s"
    with refused("Join"):
        faults.Join()
