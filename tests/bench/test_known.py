import pytest
import torch

from paceline.bench.known import PERIOD, Known, fill, find_wrong
from paceline.bench.patterns import PATTERNS

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]


def filled(known, rank):
    tensor = torch.empty(known.length, dtype=known.dtype)
    fill(tensor, known.of(rank))
    return tensor


@pytest.mark.parametrize("length", [0, 1, PERIOD - 1, PERIOD, PERIOD + 1, 5 * PERIOD + 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_filled_in_is_found_right(length, dtype):
    known = Known(3, length, dtype)
    assert find_wrong(filled(known, 1), known.of(1)) is None


@pytest.mark.parametrize("workers", [1, 2, 7, 64, 255])
def test_the_sum_is_exact_in_bfloat16_in_any_order(workers):
    known = Known(workers, 2000, torch.bfloat16)
    tensors = [filled(known, rank) for rank in range(workers)]
    for order in (tensors, tensors[::-1]):
        total = torch.zeros(2000, dtype=torch.bfloat16)
        for tensor in order:
            total += tensor
        assert find_wrong(total, known.sum()) is None


@pytest.mark.parametrize("index", [0, 500, PERIOD, 4 * PERIOD + 1])
def test_one_wrong_element_is_found_and_told(index):
    known = Known(2, 4 * PERIOD + 2, torch.float32)
    tensor = filled(known, 0)
    right = tensor[index].item()
    tensor[index] = -3
    assert find_wrong(tensor, known.of(0)) == (index, -3.0, right)


def test_a_wrong_element_of_a_chunk_is_told_by_its_place_in_the_tensor():
    known = Known(4, 4000, torch.float32)
    tensor = filled(known, 0)
    tensor[2100] = -1
    assert find_wrong(tensor, known.of(0, known.chunk(2)))[0] == 2100


def test_a_chunk_in_the_wrong_place_is_wrong():
    known = Known(4, 4096, torch.float32)
    swapped = filled(known, 0)[[*range(2048, 4096), *range(2048)]]
    assert find_wrong(swapped, known.of(0)) is not None


def test_what_an_earlier_call_left_behind_is_wrong():
    before, after = Known(4, 4096, torch.float32, call=6), Known(4, 4096, torch.float32, call=7)
    assert find_wrong(filled(before, 0), after.of(0)) is not None


def exchanged(inputs):
    """All-to-all by its definition: rank i's chunk j becomes rank j's chunk i."""
    chunks = [tensor.chunk(len(inputs)) for tensor in inputs]
    return [torch.cat([chunks[i][j] for i in range(len(inputs))]) for j in range(len(inputs))]


RIGHT = {
    "all-reduce": lambda inputs: [sum(inputs)] * len(inputs),
    "broadcast": lambda inputs: [inputs[0]] * len(inputs),
    "reduce": lambda inputs: [sum(inputs), *inputs[1:]],
    "all-gather": lambda inputs: [torch.cat([t.chunk(len(inputs))[i] for i, t in enumerate(inputs)])] * 4,
    "reduce-scatter": lambda inputs: [sum(inputs)] * len(inputs),
    "all-to-all": exchanged,
    "barrier": lambda inputs: inputs,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_expects_what_its_definition_gives(pattern):
    known = Known(4, 4000, torch.float64, call=3)
    outputs = RIGHT[pattern]([filled(known, rank) for rank in range(4)])
    for rank, output in enumerate(outputs):
        for piece in PATTERNS[pattern].expected(known, rank):
            assert find_wrong(output, piece) is None
