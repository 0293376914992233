import dataclasses
from xml.etree import ElementTree

import pytest
from chosen_runs import run_of, with_figures
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.costs.units import format_seconds
from paceline.runs.summary import as_lines


@pytest.fixture(scope="module")
def run():
    task = a_task(test=samples(6), metric="mse", target=100.0)
    return pl.train(task, "all-reduce", simulated(2), epochs=2)


def test_printed_a_run_is_five_lines(run):
    lines, reached = str(run).splitlines(), format_seconds(run.seconds_to_target)
    assert [line.split()[0] for line in lines] == ["strategy", "seconds", "steps", "result", "time"]
    assert lines[0].endswith(f"all-reduce on {run.cluster}")
    assert lines[2].endswith("6 (48 samples, 2 epochs)")
    assert lines[3].endswith(f"loss {run.loss:.6g}, mse {run.metric:.4f}, target 100 reached after {reached}")


def test_a_run_without_mathematics_is_five_lines_too():
    lines = str(run_of("async")).splitlines()
    assert len(lines) == 5
    assert lines[3].endswith("no tensor math")


@pytest.mark.parametrize("strategy", ["pipeline", "k-sync:k=1"])
def test_the_shares_of_time_add_up_to_all_of_it(strategy):
    task = a_task(test=samples(6), metric="mse")
    time = as_lines(pl.train(task, strategy, pl.Local(workers=2), steps=3))["time"]
    shares = [int(words.split()[-1].removesuffix("%")) for words in time.split(", ")]
    assert sum(shares) == pytest.approx(
        100, abs=len(shares) / 2 + 1.5
    )  # each is rounded, or left out below 0.5 %


def test_in_a_list_a_run_is_one_line(run):
    assert repr([run]).startswith("[<Run all-reduce on 2 simulated workers")
    assert "6 steps in " in repr(run)
    assert "\n" not in repr(run)
    assert len(repr(run)) < 300


def test_a_run_without_steps_has_a_text():
    empty = dataclasses.replace(run_of("single"), history=[], seconds=0.0)
    assert len(str(empty).splitlines()) == 5
    assert "0 steps" in repr(empty)
    assert "<svg" not in empty._repr_html_()


def test_a_notebook_shows_a_table_and_curves(run):
    root = ElementTree.fromstring(f"<div>{run._repr_html_()}</div>")
    cells = [cell.text for cell in root.iter("td")]
    assert dict(zip(cells[::2], cells[1::2], strict=True)) == as_lines(run)
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["loss", "mse"]


def test_a_metric_that_is_the_loss_is_told_apart_from_that_of_the_last_step():
    task = a_task(test=samples(6), metric="loss")
    lines = as_lines(pl.train(task, "single", simulated(1), steps=2))
    assert {"loss", "test loss"} <= {*lines}


def test_a_metric_without_a_name_is_called_one():
    run = with_figures(run_of("single"), metrics=(0.5,), fingerprint={"metric": "<lambda>"})
    assert as_lines(run)["metric"] == "0.5000"


def test_a_change_of_members_is_told_with_its_times_and_what_was_repeated():
    faults = [pl.faults.Kill(1, step=3), pl.faults.Join(step=5)]
    machines = simulated(4, min_workers=2, faults=faults)
    run = pl.train(a_task(), "all-reduce", machines, steps=6)
    lost, joined = (line for name, line in as_lines(run).items() if name.startswith("generation"))
    change = run.generations[1]
    done_s = next(record.seconds for record in run.history if record.seconds > change.began_s)
    assert "rank 1 lost, 1 step repeated, 3 ranks from step 3" in lost
    assert f"at {format_seconds(change.detected_s)}" in lost
    assert f"next step complete {format_seconds(done_s - change.detected_s)} later" in lost
    assert "rank 1 joined" in joined
    assert "4 ranks" in joined
