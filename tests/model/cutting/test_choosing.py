import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.model.cutting.choosing import BYTE, choose
from paceline.model.cutting.parts import Part


def parts_of(operations, crossing=None, closed=()):
    crossing = crossing or [0] * len(operations)
    return [
        Part(name=str(n), operations=o, crossing=(c,), obstacle="closed" if n in closed else "")
        for n, (o, c) in enumerate(zip(operations, crossing, strict=True))
    ]


def worst(parts, cuts):
    bounds = [0, *cuts, len(parts)]
    sent = [0, *(parts[cut - 1].crossing_bytes for cut in cuts), 0]
    return max(
        sum(part.operations for part in parts[a:b]) + BYTE * (sent[n] + sent[n + 1])
        for n, (a, b) in enumerate(itertools.pairwise(bounds))
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 5),
)
def test_no_other_cuts_have_a_better_worst_segment(rows, segments):
    operations, crossing, closed = zip(*rows, strict=True)
    parts = parts_of(operations, crossing, {n for n, is_closed in enumerate(closed) if is_closed})
    places = [n + 1 for n, part in enumerate(parts[:-1]) if not part.obstacle]
    every = list(itertools.combinations(places, segments - 1))
    found = choose(parts, segments)
    if not every:
        assert found is None
    else:
        assert tuple(found) in every
        assert worst(parts, found) == pytest.approx(min(worst(parts, cuts) for cuts in every))


def test_equal_layers_are_shared_out_evenly():
    assert choose(parts_of([1.0] * 12), 4) == [3, 6, 9]


def test_of_equal_seconds_fewer_bytes_win():
    # Both cuts leave a segment of 30; the second sends less.
    assert choose(parts_of([30, 0, 30], [2, 1, 0]), 2) == [2]


def test_a_model_of_very_many_operations_is_cut_where_it_is_cheap():
    operations, crossing = [1e6] * 4000, [1000 if n % 10 else 1 for n in range(4000)]
    cuts = choose(parts_of(operations, crossing), 4)
    assert all(crossing[cut - 1] == 1 for cut in cuts)
    assert worst(parts_of(operations, crossing), cuts) < 1.05e9
