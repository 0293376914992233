"""The parts of `make demo`. The demo itself takes a minute."""

import importlib.util
import sys
from pathlib import Path

import pytest
from chosen_runs import entry, run_of, with_figures

import paceline as pl
from paceline.analysis.comparison.names import named_strategies

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    module = sys.modules["demo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(**seconds_to_target):
    """Return a comparison of these strategies. None stands for a strategy that does not reach the target."""
    runs = {name.replace("_", "-"): seconds for name, seconds in seconds_to_target.items()}
    return pl.Comparison(
        entries=tuple(
            entry(with_figures(run_of(name), metrics=(0.97,) if s else (0.1,), target=0.95, step_s=s or 1.0))
            for name, s in runs.items()
        )
    )


@pytest.fixture(scope="module")
def proof():
    predicted = found(all_reduce=6.0, sync=2.0, single=5.0, map_reduce=7.0, local_sgd=1.0)
    return pl.Proof(title="On 4 machines", predicted=predicted)


@pytest.mark.parametrize("machines", [4, 16])
def test_there_are_a_dozen_strategies_for_each_number_of_machines(demo, machines):
    assert len(named_strategies(demo.strategies(machines), machines)) == 12


def test_the_same_machines_are_simulated_and_emulated(demo):
    for machines in (4, 16):
        given = demo.described(machines, batch_size=64)
        assert pl.Simulated(**given).compute == pl.Local(**given).compute
        # For any number of machines, all of them together compute a batch in the same time.
        assert given["compute"].mean_s * machines == pytest.approx(64 * demo.SAMPLE_MS * 1e-3)


def test_the_best_two_the_default_and_the_worst_are_proved(demo, proof):
    assert demo.chosen(proof) == ["local-sgd", "sync", "all-reduce", "map-reduce"]


def test_a_verdict_says_how_far_off_and_which_gradients_did_not_fit(demo, proof):
    measured = found(sync=2.1, all_reduce=6.0)
    done = pl.Proof(title="", predicted=proof.predicted, measured=measured)
    assert demo.verdict(done) == "Predicted and measured differ by at most 5.0%."
    measured.entries[0].runs[0].environment["overruns"] = "2 of 9 gradients took longer"
    assert demo.verdict(done).endswith(" sync: 2 of 9 gradients took longer.")


def test_the_story_begins_with_the_best_and_the_default(demo, proof):
    done = pl.Proof(title="", predicted=proof.predicted, measured=found(sync=2.1))
    lead, *rest = demo.story("single wins.", done, done)
    assert "local-sgd reaches 95% after 1 s, 5.0 times as soon as one machine" in lead
    assert "all-reduce, which waits for the slow machine, after 6 s" in lead
    assert rest.count(done) == 2


def test_the_readme_shows_what_the_demo_prints(demo):
    readme = (ROOT / "README.md").read_text()
    block = readme.partition("<!-- demo: begin -->")[2].partition("<!-- demo: end -->")[0]
    shown = {line.split()[0] for line in block.splitlines() if line.strip()}
    assert {*demo.strategies(4), *demo.strategies(16), "single"} <= shown
    assert all(line in block for line in demo.NEXT.splitlines())
    clusters = (pl.Simulated(**demo.described(4, 64)), pl.Simulated(**demo.described(16, 64)))
    assert all(str(cluster) in block for cluster in (*clusters, pl.Local(**demo.described(4, 64))))
