"""What every codec promises: its bytes, its errors, and that nothing is lost."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown

import paceline as pl
from paceline.codecs import NAMES, codec_of, spell_codec

MESSAGES = ("bf16", "fp16", "int8", "int4")
GRADIENTS = ("sign", "topk-0.01", "topk-0.3-0.9", "powersgd-1", "powersgd-2")
BYTES = {
    "bf16": lambda n: 2 * n,
    "fp16": lambda n: 2 * n,
    "int8": lambda n: n + math.ceil(n / 256),
    "int4": lambda n: math.ceil(n / 2) + math.ceil(n / 256),
    "sign": lambda n: math.ceil(n / 8) + 8,
    "topk-0.01": lambda n: 8 * max(1, round(0.01 * n)),
}
SHAPES = [(20, 30), (30,), (7, 3, 5)]
LENGTH = sum(math.prod(shape) for shape in SHAPES)


def numbers(length, seed=0, dtype=torch.float32, scale=1.0):
    return scale * torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sent_by(codec, tensor):
    """What the receiver of an encoded gradient has."""
    memory = torch.zeros(codec.memory_length(SHAPES))
    sent = torch.empty_like(tensor)
    codec.decode(codec.encode(tensor, SHAPES, memory), sent, SHAPES)
    return sent


@pytest.mark.parametrize("word", BYTES)
@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 1003])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_codes_have_the_stated_bytes_with_and_without_values(word, length, device):
    assert codec_of(word).encode(numbers(length).to(device)).nbytes == BYTES[word](length)


def test_the_factors_of_a_matrix_are_its_code():
    codes = pl.codecs.PowerSGD(2).encode(numbers(600), [(20, 30)], torch.zeros(60))
    assert codes.nbytes == 4 * 2 * (20 + 30)


@pytest.mark.parametrize("word", MESSAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 2**20), length=st.integers(1, 600), exponent=st.integers(-25, 25))
@settings(max_examples=20, deadline=None)
def test_decoded_values_are_encoded_again_without_error(word, dtype, seed, length, exponent):
    codec, given_values = codec_of(word), numbers(length, seed, dtype, 2.0**exponent)
    once = codec.decode(codec.encode(given_values, seed), dtype)
    assert torch.equal(codec.decode(codec.encode(once, seed + 1), dtype), once)
    assert once.shape == given_values.shape


@pytest.mark.parametrize("word", ["int8", "int4"])
def test_quantization_is_unbiased_and_within_the_published_variance(word):
    codec, values = codec_of(word), numbers(512)
    copies = torch.stack([codec.decode(codec.encode(values, seed), values.dtype) for seed in range(2000)])
    widest = values.abs().max() * 2 / codec.levels  # of a step; half of it is the largest standard deviation
    assert (copies.mean(0) - values).abs().max() <= 5 * widest / 2 / math.sqrt(2000)
    variance = (copies - values).square().sum(1).mean()
    assert variance <= 256 / codec.levels**2 * values.square().sum()


@pytest.mark.parametrize("word", ["int8", "int4"])
def test_equal_seeds_round_alike(word):
    codec, values = codec_of(word), numbers(300)
    assert torch.equal(codec.encode(values, 7), codec.encode(values, 7))
    assert not torch.equal(codec.encode(values, 7), codec.encode(values, 8))


def test_half_precision_keeps_large_values_finite():
    codes = pl.codecs.fp16.encode(torch.tensor([1e9, -1e9]))
    assert pl.codecs.fp16.decode(codes, torch.float32).tolist() == [65504.0, -65504.0]


@given(seed=st.integers(0, 2**20), ratio=st.floats(0.001, 1), length=st.integers(1, 500))
@settings(max_examples=50, deadline=None)
def test_top_k_keeps_the_bound_of_its_error(seed, ratio, length):
    codec, values = pl.codecs.TopK(ratio), numbers(length, seed, torch.float64)
    sent = torch.empty_like(values)
    codec.decode(codec.encode(values), sent)
    k = codec.count(length)
    assert (sent != 0).sum() <= k
    assert (values - sent).square().sum() <= (1 - k / length) * values.square().sum() + 1e-12


def test_powersgd_is_exact_on_matrices_of_its_rank():
    low = (numbers(40).view(20, 2) @ numbers(60, 1).view(2, 30)).view(-1)
    tensor = torch.cat([low, numbers(LENGTH - 600, 2)])
    torch.testing.assert_close(
        sent_by(pl.codecs.PowerSGD(2), tensor)[:630], tensor[:630], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("word", [*MESSAGES, *GRADIENTS])
def test_a_codec_is_spelled_as_it_is_parsed(word):
    assert spell_codec(word) == spell_codec(codec_of(word)) == word
    assert codec_of(word) == codec_of(codec_of(word))


@pytest.mark.parametrize("word", [*MESSAGES, "sign", "topk-0.5"])
def test_integers_are_refused(word):
    with refused("tensor", has("int64")):
        codec_of(word).encode(torch.arange(5))


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda: pl.codecs.TopK(0.0), refused("ratio", 0.0)),
        (lambda: pl.codecs.TopK(1.5), refused("ratio", 1.5)),
        (lambda: pl.codecs.TopK(math.nan), refused("ratio", has("nan"))),
        (lambda: pl.codecs.TopK(0.1, momentum=1.0), refused("momentum", 1.0)),
        (lambda: pl.codecs.PowerSGD(0), refused("rank", 0)),
        (lambda: pl.codecs.QSGD(3), refused("bits", 3)),
        (lambda: codec_of("topk"), refused("codec", has("topk-"))),
        (lambda: codec_of("powersgd-x"), refused("codec", has("powersgd-x"))),
        (lambda: codec_of("bf61"), unknown("codec", "bf61", nearest="bf16")),
    ],
)
def test_what_cannot_be_right_is_refused(make, refusal):
    with refusal:
        make()


def test_the_names_list_every_kind():
    assert len(NAMES) == 8
