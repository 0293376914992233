from paceline.model.cutting.parts import Part
from paceline.model.cutting.recomputed import recomputed_places


def part(*crossing, moved_bytes=0.0, obstacle=""):
    return Part(name="", operations=1.0, crossing=crossing, moved_bytes=moved_bytes, obstacle=obstacle)


def test_blocks_with_many_activations_and_small_outputs_are_segments_of_their_own():
    assert recomputed_places([part(2, moved_bytes=64.0)] * 6) == [1, 2, 3, 4, 5]


def test_layers_that_store_little_more_than_their_outputs_are_grouped():
    places = recomputed_places([part(4)] * 16)
    assert 0 < len(places) < 15


def test_a_stage_is_cut_only_where_one_value_crosses_and_nothing_is_in_the_way():
    parts = [
        part(2, moved_bytes=64.0),
        part(2, 2, moved_bytes=64.0),
        part(2, moved_bytes=64.0, obstacle="a tuple"),
    ]
    assert recomputed_places([*parts, *parts]) == [1, 4]


def test_a_single_layer_is_not_cut():
    assert recomputed_places([part(2)]) == []
