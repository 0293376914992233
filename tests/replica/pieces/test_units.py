"""Units: parameters that ranks share, and memory that comes and goes."""

import torch
from torch import nn

from paceline.replica.layout import Layout
from paceline.replica.pieces.units import Home, Passing, homes_of, laid_out, units_of


def a_layout():
    return Layout.of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)))


def alone(*names):
    """Homes of segments that share nothing."""
    return [Home(number, tuple(each), (number,)) for number, each in enumerate(names)]


def test_what_one_segment_uses_is_its_own_and_what_several_use_has_a_home_apart():
    used = [["a", "b"], ["b", "c"], ["a", "d", "b"], ["a"]]
    assert homes_of(used, range(4), "abcd") == [
        Home(0, (), (0,)),
        Home(1, ("c",), (1,)),
        Home(2, ("d",), (2,)),
        Home(3, (), (3,)),
        Home(4, ("a",), (0, 2, 3)),
        Home(5, ("b",), (0, 1, 2)),
    ]


def test_who_holds_some_segments_has_the_same_homes_of_tied_parameters_as_others():
    used = [["a", "b", "c"], ["d"], ["b", "c"]]
    first, last = (homes_of(used, held, "abcd") for held in ([0, 1], [2]))
    assert first == [Home(0, ("a",), (0,)), Home(1, ("d",), (1,)), Home(3, ("b", "c"), (0,))]
    assert last == [Home(2, (), (2,)), Home(3, ("b", "c"), (2,))]


def test_what_is_not_trained_belongs_to_no_unit():
    assert homes_of([["a", "b"], ["c", "d"], ["d"]], range(3), "b") == alone("b", "", "")


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


def test_memory_that_is_gone_takes_none_and_views_of_it_are_right_again():
    flat = torch.arange(6.0)
    view = flat.view(2, 3).t()
    memory = Passing(flat)
    memory.go()
    assert not memory.is_there
    assert memory.nbytes == flat.untyped_storage().nbytes() == 0
    memory.come().copy_(torch.arange(6.0) + 1)
    assert memory.nbytes == 24
    assert view.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_nothing_at_all_is_always_there():
    memory = Passing(torch.empty(0))
    memory.go()
    assert memory.is_there
    assert memory.come().numel() == 0
