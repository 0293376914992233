"""Strategies with `codec=`: bytes, bits, checkpoints and refusals."""

from dataclasses import dataclass

import pytest
import torch
from refusals import has, refused
from strategies.local_cases import labelled
from tasks import WORLDS, simulated

import paceline as pl
from paceline.codecs import codec_of
from paceline.collectives.coded import coded
from paceline.collectives.error_feedback import ErrorFeedback
from paceline.context import Strategy

SPECS = [
    "all-reduce:codec=bf16",
    "all-reduce:codec=int4,algorithm=tree",
    "all-reduce:codec=sign",
    "all-reduce:codec=topk-0.1-0.9,bucket_mb=0.0001",
    "all-reduce:codec=powersgd-1,bucket_mb=0.0001",
    "sync:codec=int8,pull_codec=bf16",
    "sync:codec=powersgd-1,servers=2",
    "k-sync:k=3,codec=fp16",
    "local-sgd:period=2,codec=int8",
    "diloco:period=4,fragments=2,delay=1,mix=0.5,codec=topk-0.1",
    "fedavg:codec=topk-0.1",
    "hybrid:pipeline=1,codec=topk-0.1",
]
RESIDUAL = ["all-reduce:codec=topk-0.1-0.5", "all-reduce:codec=powersgd-1", "local-sgd:period=2,codec=sign"]


def trained(spec, workers=3, steps=6, **options):
    return pl.train(labelled(), spec, simulated(workers), steps=steps, **options)


@pytest.mark.parametrize(
    "spec", [SPECS[1], SPECS[4], *(pytest.param(s, marks=pytest.mark.slow) for s in SPECS)]
)
def test_worlds_give_the_same_bits_and_bytes(spec):
    real, virtual = (pl.train(labelled(), spec, make(3), steps=4) for make in WORLDS.values())
    assert torch.equal(real.parameters, virtual.parameters)
    assert real.bytes_sent == virtual.bytes_sent


@pytest.mark.parametrize("spec", SPECS)
def test_a_simulation_without_values_sends_the_same_bytes(spec):
    compute = {"compute": pl.times.Constant("1ms")}
    one, other = (
        pl.train(labelled(), spec.removesuffix(",servers=2"), simulated(3, math=math, **compute), steps=5)
        for math in ("real", "none")
    )
    assert one.bytes_sent == other.bytes_sent
    assert one.messages_sent == other.messages_sent


@pytest.mark.parametrize(
    "strategy", ["all-reduce:algorithm=ring", "sync", "local-sgd:algorithm=ring", "fedavg"]
)
def test_codec_none_changes_nothing(strategy):
    separator = "," if ":" in strategy else ":"
    plain, none = trained(strategy), trained(f"{strategy}{separator}codec=none")
    assert torch.equal(plain.parameters, none.parameters)
    assert plain.bytes_sent == none.bytes_sent


@pytest.mark.parametrize(
    ("codec", "factor"),
    [("bf16", 4), ("fp16", 4)],  # the task is in float64
)
def test_bytes_shrink_by_the_factor_of_the_codec(codec, factor):
    plain, small = trained("all-reduce:algorithm=ring"), trained(f"all-reduce:codec={codec}")
    assert sum(plain.bytes_sent) == factor * sum(small.bytes_sent)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepsEverything(Strategy):
    """Encodes the gradients of a few steps, and checks what is kept."""

    codec: str

    async def worker(self, ctx):
        codec = codec_of(self.codec)
        feedback, model = ErrorFeedback(ctx.model, codec, None), ctx.model
        kept = torch.zeros_like(model.gradient)
        async for batch in ctx.batches():
            await model.compute(batch)
            given = model.gradient + kept
            codes = feedback.encode(model.gradient, 0)
            sent = torch.empty_like(given)
            codec.decode(codes, sent, [place.shape for place in model.places.values()])
            kept = model.state("codec_residual", like=model.gradient)
            within = 0 if "topk" in self.codec else 1e-12
            torch.testing.assert_close(sent + kept, given, rtol=0, atol=within)
            assert sent.any()
            await model.apply()


@pytest.mark.parametrize("codec", ["sign", "topk-0.1", "topk-1", "powersgd-1", "powersgd-2"])
def test_what_is_sent_plus_what_is_kept_is_the_gradient_plus_what_was_kept(codec):
    pl.train(labelled(), KeepsEverything(codec=codec), simulated(1), steps=6)


@dataclass(frozen=True, kw_only=True, slots=True)
class SumsEverything(Strategy):
    """Sums gradients with a codec, and checks that the sum plus what all ranks keep is the sum of what was given."""

    codec: str

    async def worker(self, ctx):
        model, net = ctx.model, coded(ctx, self.codec)
        async for batch in ctx.batches():
            before = model.state("codec_residual", like=model.gradient).clone()
            await model.compute(batch)
            given = model.gradient + before
            await pl.collectives.all_reduce(ctx.net, given, "ring")
            await pl.collectives.all_reduce(net, model.gradient, "ring")
            kept = model.state("codec_residual", like=model.gradient).clone()
            await pl.collectives.all_reduce(ctx.net, kept, "ring")
            torch.testing.assert_close(model.gradient + kept, given, rtol=0, atol=1e-12)
            await model.apply()


@pytest.mark.parametrize("codec", ["sign", "topk-0.1", "powersgd-1"])
def test_the_sum_plus_what_all_ranks_keep_is_the_sum_of_all_gradients(codec):
    pl.train(labelled(), SumsEverything(codec=codec), simulated(3), steps=5)


@pytest.mark.parametrize("spec", [*RESIDUAL, "all-reduce:codec=int8", "sync:codec=topk-0.1"])
def test_a_resumed_run_has_the_bits_of_one_that_was_never_interrupted(spec, tmp_path):
    whole = trained(spec)
    trained(spec, steps=3, checkpoint=tmp_path)
    assert torch.equal(trained(spec, checkpoint=tmp_path, resume=True).parameters, whole.parameters)


@pytest.mark.parametrize("spec", RESIDUAL[:2])
def test_residuals_belong_to_their_workers(spec, tmp_path):
    trained(spec, steps=3, checkpoint=tmp_path)
    with refused("strategy", bound=has("3 workers")):
        trained(spec, workers=2, checkpoint=tmp_path, resume=True)


def test_codecs_without_residuals_allow_another_number_of_workers(tmp_path):
    trained("all-reduce:codec=bf16", steps=3, checkpoint=tmp_path)
    assert trained("all-reduce:codec=bf16", workers=2, checkpoint=tmp_path, resume=True).steps == 6


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "sign", "topk-0.1", "powersgd-1"])
def test_training_still_learns(codec):
    plain, small = (trained(f"all-reduce:codec={word}", steps=40) for word in ("none", codec))
    first, last = small.history[0]["loss"], small.history[-1]["loss"]
    assert last < (first + plain.history[-1]["loss"]) / 2


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("all-reduce:codec=topk-2", refused("ratio", 2.0)),
        ("all-reduce:codec=bf16,algorithm=shared", refused("algorithm", "shared", bound=has("ring"))),
        ("all-reduce:codec=int8,algorithm=halving-doubling", refused("algorithm", bound=has("ring"))),
        ("all-reduce:codec=bf16,algorithm=recursive-doubling", refused("algorithm", bound=has("ring"))),
        ("all-reduce:codec=sign,algorithm=tree", refused("algorithm", "tree", bound=has("ring"))),
        ("all-reduce:codec=powersgd-9", refused("rank", 9, bound=has(2))),
        ("sync:pull_codec=sign", refused("pull_codec", "sign")),
        ("k-batch-sync:k=2,codec=sign", refused("codec", "sign")),
        ("local-sgd:codec=int8,post_local=3", refused("post_local", 3)),
        ("local-sgd:codec=int8,averages=parameters+momentum", refused("averages")),
        ("hybrid:zero=1,codec=bf16", refused("codec", "bf16")),
        ("decentralized:codec=bf16", refused("decentralized:codec", "bf16", bound=has("mean", "gossip"))),
        ("zero:codec=bf16", refused("zero:codec", "bf16", remedy=has("all-reduce", "hybrid"))),
    ],
)
def test_what_a_strategy_cannot_carry_is_refused(spec, refusal):
    with refusal:
        trained(spec, steps=1)
