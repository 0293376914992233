"""Collectives on nets with codecs: every rank has the same bits, and nothing is lost."""

import pytest
import torch
from refusals import has, raised, refused
from tasks import WORLDS, simulated

import paceline as pl
from paceline import collectives
from paceline.collectives.coded import coded
from paceline.errors import MismatchError
from paceline.strategies.shared.codec import carriers

MESSAGES = ("bf16", "fp16", "int8", "int4")


def own(rank, length):
    return torch.randn(length, generator=torch.Generator().manual_seed(rank))


def summed(codec, algorithm, length):
    async def program(ctx):
        tensor = own(ctx.rank, length)
        await collectives.all_reduce(coded(ctx, codec), tensor, algorithm)
        return tensor

    return program


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("codec", "algorithm"), [(codec, each) for codec in MESSAGES for each in carriers(codec)[1:]]
)
def test_every_rank_ends_with_the_same_bits(codec, algorithm, ranks, hosts):
    for length in (1, 3, 1003):
        cluster = simulated(ranks, hosts=hosts)
        first, *others = pl.run_program(summed(codec, algorithm, length), cluster).results
        assert all(torch.equal(first, other) for other in others)
        exact = sum(own(rank, length) for rank in range(ranks))
        worst = {"bf16": 0.1, "fp16": 0.01, "int8": 0.3, "int4": 6.0}[codec]
        assert (first - exact).abs().max() < worst * ranks


@pytest.mark.parametrize("codec", MESSAGES)
def test_worlds_give_the_same_bits_and_bytes(codec):
    runs = [pl.run_program(summed(codec, "ring", 1003), make(3)) for make in WORLDS.values()]
    assert torch.equal(runs[0].results[0], runs[1].results[0])
    assert runs[0].bytes_sent == runs[1].bytes_sent


def test_a_window_is_declined():
    async def program(ctx):
        net = coded(ctx, "bf16")
        assert not net.shares_memory
        with refused("window", has("name")):
            net.window("name", rows=1, like=torch.zeros(3))

    pl.run_program(program, simulated(2))


def test_parts_of_a_net_have_the_codec_too():
    async def program(ctx):
        pair = coded(ctx, "bf16").split([0, 1]) if ctx.rank < 2 else None
        tensor = torch.full((100,), 1 / 3)
        if pair is not None:
            await collectives.all_reduce(pair, tensor, "ring")
        return tensor[0].item()

    run = pl.run_program(program, simulated(3))
    assert run.results[0] == run.results[1] == float(2 * torch.tensor(1 / 3).bfloat16())
    assert run.bytes_sent == [200, 200, 0]


def test_no_codec_is_the_net_itself():
    async def program(ctx):
        assert coded(ctx, "none") is ctx.net

    pl.run_program(program, simulated(2))


def test_a_message_of_another_length_is_refused():
    async def program(ctx):
        net = coded(ctx, "int8")
        if ctx.rank == 0:
            await net.send(1, torch.ones(5))
        else:
            await net.recv(0, torch.ones(6))

    with raised(MismatchError, sent=has(5), expected=has(6)):
        pl.run_program(program, simulated(2))
