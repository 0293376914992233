import json
import math

import pytest
from report.cases import entry, handmade, history_of, trained

from paceline.analysis.comparison.entry import Entry
from paceline.faults import Kill
from paceline.report.payload import payload, script_safe_json
from paceline.trace import Kind


def test_the_payload_is_plain_json(entries):
    values = payload(entries)
    assert json.loads(script_safe_json(values)) == json.loads(json.dumps(values, allow_nan=False))
    assert values["entries"] == ["all-reduce:algorithm=ring", "k-sync:k=3", "async"]
    assert values["kinds"] == [kind.label for kind in Kind]


def test_no_text_in_the_json_can_end_the_element():
    text = script_safe_json({"name": "</script><!--<script>", "plain": "µ"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><!--<script>", "plain": "µ"}


def test_what_is_no_number_is_null():
    assert script_safe_json({"a": math.nan, "b": [1.5, (math.inf,)]}) == '{"a":null,"b":[1.5,[null]]}'


def test_repeats_are_runs_of_one_entry_and_one_stands_for_all():
    runs = [trained("async", seed=seed, steps=8) for seed in range(3)]
    found = payload([entry("sync"), entry("async", *runs)])["runs"]
    assert [(run["entry"], run["repeat"], run["repeats"]) for run in found] == [
        (0, 0, 1),
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
    ]
    assert [run["seed"] for run in found[1:]] == [0, 1, 2]
    assert sum(run["typical"] for run in found[1:]) == 1


def test_a_failed_entry_keeps_its_place_but_has_no_run():
    values = payload([Entry(name="broken", error="no"), entry("sync")])
    assert values["entries"] == ["broken", "sync"]
    assert [run["entry"] for run in values["runs"]] == [1]


def test_the_figures_of_a_run_are_its_own():
    run = trained("k-sync:k=3")
    [found] = payload([entry("k-sync:k=3", run)])["runs"]
    summary = run.trace.summary()
    assert found["staleness"] == sorted(run.staleness.items())
    assert found["shares"][0] == pytest.approx(summary.compute_share, abs=1e-5)
    assert found["loss"]["raw"]["value"] == pytest.approx([record.loss for record in run.history])
    assert found["metric"]["value"][-1] == pytest.approx(run.metric)
    assert found["target"] == run.target


def test_a_run_without_mathematics_has_no_loss():
    [found] = payload([entry("x", handmade(history=history_of([math.nan] * 5)))])["runs"]
    assert found["loss"] == {"raw": None, "smooth": None}


def test_consensus_is_there_where_the_history_has_it():
    history = history_of([1.0, 0.5], consensus=0.125)
    [found] = payload([entry("x", handmade(history=history))])["runs"]
    assert found["consensus"]["value"] == [0.125, 0.125]
    [other] = payload([entry("sync")])["runs"]
    assert other["consensus"] is None


def test_changes_of_members_have_a_sentence_and_other_losses_a_step():
    elastic = trained("sync", min_workers=1, faults=[Kill(1, step=3), Kill(2, step=5)])
    plain = trained("async", faults=[Kill(1, step=3)])
    first, second = payload([entry("sync", elastic), entry("async", plain)])["runs"]
    assert [text.split()[:2] for text in first["changes"]] == [["Generation", "1"], ["Generation", "2"]]
    assert first["lost"] == second["changes"] == []
    assert [rank for rank, _ in second["lost"]] == [1]
