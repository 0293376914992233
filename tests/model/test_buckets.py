import itertools

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.model.buckets import Buckets
from paceline.model.layout import Layout


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 200))
def test_buckets_cover_the_gradient_and_the_last_is_handed_over_first(sizes, bucket_bytes):
    layout = Layout.of(nn.Sequential(*(nn.Linear(1, size, bias=False) for size in sizes)))
    buckets = Buckets(layout, bucket_bytes)
    places = [buckets.place(number) for number in buckets.order()]
    assert places[0].stop == layout.length
    assert places[-1].start == 0
    assert all(later.start == earlier.stop for later, earlier in itertools.pairwise(places))
    assert buckets.shares() == [(place.stop - place.start) / layout.length for place in places]
    assert all(number in buckets.runs[buckets.of[number]] for number in range(len(sizes)))
