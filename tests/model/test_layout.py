import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.model.layout import BUCKET_BYTES, Layout, Within, flatten

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


def layout_of(sizes, dtype=torch.float32):
    return Layout.of(nn.ParameterList([nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]))


def covers(slices, length):
    """Whether slices cover 0 to `length`, each beginning where the one before it ends."""
    bounds = [0, *(part.stop for part in slices)]
    return [part.start for part in slices] == bounds[:-1] and bounds[-1] == length


def test_parameters_lie_in_the_order_of_registration():
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    assert layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert layout.offsets == (0, 6, 8, 10, 11)
    assert (layout.length, layout.nbytes) == (11, 44)


def test_frozen_parameters_have_no_place():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    module[0].weight.requires_grad_(False)
    assert Layout.of(module).names == ("0.bias", "1.weight", "1.bias")


def test_a_tied_parameter_has_one_place():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    assert Layout.of(module).names == ("0.weight", "0.bias", "1.bias")


def test_views_have_the_parameters_shapes_and_share_the_flat_memory():
    layout = Layout.of(nn.Linear(3, 2))
    flat = torch.zeros(8)
    weight, bias = layout.views(flat)
    weight[1, 2], bias[0] = 1, 2
    assert weight.shape == (2, 3)
    assert flat.tolist() == [0, 0, 0, 0, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("dtypes", "widest"),
    [
        ((torch.float32, torch.float64), torch.float64),
        ((torch.bfloat16, torch.float32), torch.float32),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.bfloat16, torch.bfloat16), torch.bfloat16),
        ((torch.complex64, torch.float32), torch.float32),
        ((torch.complex128, torch.float32), torch.float64),
    ],
)
def test_flat_tensors_are_real_and_as_wide_as_the_widest_parameter(dtypes, widest):
    layout = Layout.of(nn.Sequential(*(nn.Linear(2, 1, dtype=dtype) for dtype in dtypes)))
    assert layout.dtype == widest
    assert layout.is_plain == (set(dtypes) == {widest})


def test_complex_parameters_are_pairs_of_numbers():
    module = nn.Linear(3, 2, dtype=torch.complex64)
    layout = Layout.of(module)
    flat = flatten(list(module.parameters()), layout.dtype, torch.device("cpu"))
    weight, bias = layout.views(flat)
    assert flat.shape == (16,)
    assert torch.equal(weight, torch.view_as_real(module.weight.detach()))
    assert torch.equal(bias, torch.view_as_real(module.bias.detach()))


@given(SIZES, st.integers(1, 200))
def test_buckets_cover_all_parameters_in_order(sizes, bucket_bytes):
    runs = layout_of(sizes).buckets(bucket_bytes)
    assert [number for run in runs for number in run] == list(range(len(sizes)))
    assert all(len(run) for run in runs)


@given(SIZES, st.integers(1, 200))
def test_a_bucket_ends_with_the_parameter_that_fills_it(sizes, bucket_bytes):
    runs = layout_of(sizes).buckets(bucket_bytes)
    full = [4 * sum(sizes[i] for i in run) >= bucket_bytes for run in runs]
    without_last = [4 * sum(sizes[i] for i in run[:-1]) < bucket_bytes for run in runs]
    assert all(full[:-1]), "only the last bucket may be smaller"
    assert all(without_last)


def test_a_small_model_has_one_bucket():
    assert layout_of([5, 5]).buckets() == [range(2)]
    assert layout_of([BUCKET_BYTES // 4, 1]).buckets() == [range(1), range(1, 2)]


@given(SIZES, st.integers(1, 9))
def test_even_shards_cover_and_differ_by_one_element_at_most(sizes, parts):
    layout = layout_of(sizes)
    shards = layout.even_shards(parts)
    lengths = {shard.stop - shard.start for shard in shards}
    assert len(shards) == parts
    assert covers(shards, layout.length)
    assert max(lengths) - min(lengths) <= 1


@given(SIZES, st.integers(1, 9))
def test_whole_shards_cover_and_are_cut_only_between_parameters(sizes, parts):
    layout = layout_of(sizes)
    shards = layout.whole_shards(parts)
    assert len(shards) == parts
    assert covers(shards, layout.length)
    assert {bound for shard in shards for bound in (shard.start, shard.stop)} <= set(layout.offsets)


@given(SIZES, st.integers(1, 9))
def test_whole_shards_are_as_even_as_whole_parameters_allow(sizes, parts):
    layout = layout_of(sizes)
    even = layout.length / parts
    for shard in layout.whole_shards(parts):
        assert shard.stop - shard.start <= even + max(sizes) + 1


def test_flatten_copies_one_after_another():
    tensors = [torch.arange(4.0).view(2, 2).t(), torch.tensor(7.0)]
    flat = flatten(tensors, torch.float64, torch.device("cpu"))
    assert flat.tolist() == [0, 2, 1, 3, 7]
    assert flat.dtype == torch.float64


@given(SIZES, st.data())
def test_a_part_of_what_is_flattened_is_that_part_of_all_of_it(sizes, data):
    tensors = [torch.rand(n) for n in sizes]
    whole = flatten(tensors, torch.float32, torch.device("cpu"))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    part = flatten(tensors, torch.float32, torch.device("cpu"), slice(start, stop))
    assert torch.equal(part, whole[start:stop])


def test_a_part_within_a_larger_parameter_is_its_stretches_one_after_the_other():
    whole = torch.arange(12).view(2, 6)
    within = Within(whole.shape, 1, ((0, 1), (3, 5)))
    assert within.of(whole).tolist() == [[0, 3, 4], [6, 9, 10]]
