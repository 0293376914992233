"""Which modules are gathered and freed as one."""

import pytest
from hooked_models import Looking, Routed, Tied
from refusals import refused
from segmented_models import SmallGPT
from torch import nn

from paceline.model.hooks.blocks import BlockLayers


def segments_of(module, count):
    return BlockLayers(module).cut(1, finer=count).segments


def names(module, count):
    return [(segment.first, segment.last) for segment in segments_of(module, count)]


def test_equal_blocks_of_a_list_are_segments():
    model = Looking(*(nn.Linear(4, 4) for _ in range(4)))
    assert names(model, 4) == [("(root)", "(root)"), *((f"blocks.{n}", f"blocks.{n}") for n in range(4))]


def test_neighbours_that_are_small_together_are_one_segment():
    model = Looking(*(nn.Linear(4, 4) for _ in range(4)))
    assert names(model, 2)[1:] == [("blocks.0", "blocks.1"), ("blocks.2", "blocks.3")]


def test_a_module_that_is_too_large_is_divided_into_its_children():
    blocks = {name for segment in segments_of(SmallGPT(), 100)[1:] for name in (segment.first, segment.last)}
    assert {"blocks.0.into", "blocks.0.up"} <= blocks
    assert "blocks.0" not in blocks


def test_parameters_outside_of_blocks_are_the_first_segment():
    assert segments_of(Routed(), 6)[0].parameters == ("scale",)


def test_a_tied_parameter_belongs_to_all_segments_that_use_it():
    first, _, last = segments_of(Tied(), 3)[1:]
    assert "blocks.0.weight" in first.parameters
    assert "blocks.0.weight" in last.parameters


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_parameter_is_in_a_segment(count):
    for model in (SmallGPT(), Routed(), nn.ModuleDict({"g": nn.Linear(2, 2), "d": Routed()})):
        every = {name for segment in segments_of(model, count) for name in segment.parameters}
        assert every == {name for name, _ in model.named_parameters()}
        shares = [segment.share for segment in segments_of(model, count)]
        assert sum(shares) == pytest.approx(1.0)


def test_a_model_without_parameters_has_one_segment():
    assert len(segments_of(nn.Tanh(), 8)) == 1


def test_stages_are_refused():
    with refused("stages", 2):
        BlockLayers(Routed()).cut(2)
