from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from paceline.schedules.collectives.steps import Buffer, Chunks, chunk_bounds, chunk_slice


@given(st.integers(0, 1000), st.integers(1, 50))
def test_chunks_cover_the_data_and_differ_by_at_most_one_element(length: int, chunks: int):
    bounds = chunk_bounds(length, chunks)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, length, chunks)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(0, 100), st.integers(1, 9), st.integers(1, 4), st.data())
def test_a_scratch_of_several_tensors_repeats_the_layout_of_the_data(
    length: int, chunks: int, copies: int, data: st.DataObject
):
    bounds = chunk_bounds(length, chunks)
    index = data.draw(st.integers(0, chunks * copies - 1))
    found = chunk_slice(Chunks(index, index + 1, Buffer.SCRATCH), bounds)
    copy, chunk = divmod(index, chunks)
    assert (found.start, found.stop) == (copy * length + bounds[chunk], copy * length + bounds[chunk + 1])
