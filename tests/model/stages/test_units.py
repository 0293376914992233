"""Units: parameters that ranks share, with memory that is freed and allocated."""

import torch
from torch import nn

from paceline.model.layout import Layout
from paceline.model.stages.units import ParameterGroup, laid_out, parameter_groups, units_of


def a_layout():
    return Layout.of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)))


def alone(*names):
    """Homes of segments that share nothing."""
    return [ParameterGroup(number, tuple(each), (number,)) for number, each in enumerate(names)]


def test_what_one_segment_uses_is_its_own_and_what_several_use_has_a_home_apart():
    used = [["a", "b"], ["b", "c"], ["a", "d", "b"], ["a"]]
    assert parameter_groups(used, range(4), "abcd") == [
        ParameterGroup(0, (), (0,)),
        ParameterGroup(1, ("c",), (1,)),
        ParameterGroup(2, ("d",), (2,)),
        ParameterGroup(3, (), (3,)),
        ParameterGroup(4, ("a",), (0, 2, 3)),
        ParameterGroup(5, ("b",), (0, 1, 2)),
    ]


def test_who_holds_some_segments_has_the_same_groups_of_tied_parameters_as_others():
    used = [["a", "b", "c"], ["d"], ["b", "c"]]
    first, last = (parameter_groups(used, held, "abcd") for held in ([0, 1], [2]))
    assert first == [
        ParameterGroup(0, ("a",), (0,)),
        ParameterGroup(1, ("d",), (1,)),
        ParameterGroup(3, ("b", "c"), (0,)),
    ]
    assert last == [ParameterGroup(2, (), (2,)), ParameterGroup(3, ("b", "c"), (2,))]


def test_what_is_not_trained_belongs_to_no_unit():
    assert parameter_groups([["a", "b"], ["c", "d"], ["d"]], range(3), "b") == alone("b", "", "")


def test_even_parts_cover_a_unit_and_differ_by_one_at_the_most():
    (first, _) = units_of(a_layout(), alone(["0.weight", "0.bias"], ["1.weight"]), 3, evenly=True)
    assert [part.stop - part.start for part in first.shards] == [6, 5, 5]
    assert [part.start for part in first.shards] == [0, *(part.stop for part in first.shards[:-1])]
    assert first.shards[-1].stop == first.length


def test_whole_layers_stay_whole_and_some_ranks_may_have_none():
    (unit,) = units_of(a_layout(), alone(["0.weight", "0.bias"]), 4, evenly=False)
    assert {part.start for part in unit.shards} | {part.stop for part in unit.shards} <= {0, 12, 16}
    assert sum(part.stop - part.start for part in unit.shards) == 16


def test_units_lie_one_after_the_other_in_one_layout():
    units = units_of(a_layout(), alone(["1.bias", "0.weight"], [], ["2.weight"]), 2, evenly=True)
    layout = laid_out(units, torch.float32)
    assert layout.names == ("1.bias", "0.weight", "2.weight")
    assert layout.offsets == (0, 5, 17, 27)
    assert [unit.start for unit in units] == [0, 17, 17]
    assert units[2].own(1) == slice(22, 27)
