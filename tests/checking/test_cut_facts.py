import pytest
from segmented_models import gpt_task, task_of

from paceline.checking.cut_facts import facts_of, split_layers_of


def test_stages_have_parameters_shares_measured_seconds_and_bytes():
    facts = facts_of(gpt_task(), 3)
    assert [stage.number for stage in facts.stages] == [0, 1, 2]
    assert sum(stage.share for stage in facts.stages) == pytest.approx(1)
    assert all(stage.seconds > 0 for stage in facts.stages)
    assert [stage.bytes_out for stage in facts.stages] == [8 * 6 * 8 * 8, 8 * 6 * 8 * 8, 0]
    assert 1 / 3 < facts.evenness <= 1
    assert facts.samples == 8


def test_cuts_can_be_given():
    facts = facts_of(task_of("perceptron"), 2, ["3"])
    assert [stage.layers for stage in facts.stages] == ["0 … 2", "3 … 4"]
    assert facts.stages[1].parameters == 7 * 5 + 5 + 5 * 2 + 2


def test_plain_values_are_for_json():
    as_dict = facts_of(task_of("perceptron"), 2).as_dict()
    assert as_dict["most"] == 6
    assert as_dict["stages"][0]["first"] == "0"


def test_layers_that_tensor_splits_and_leaves_whole_are_listed():
    found = split_layers_of(gpt_task(), 2)
    assert {"blocks.0.into", "blocks.0.down"} <= set(found.split)
    assert found.whole == ("tokens", "places")
    assert "places" in found.words()
