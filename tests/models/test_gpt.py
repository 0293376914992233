import math
from dataclasses import replace

import pytest
import torch
from refusals import has, refused
from torch.func import functional_call

import paceline as pl
from paceline.model.cutting.layers import Layers

GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}
SMALL = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 4, "vocabulary": 10}
PLAIN = replace(pl.devices.A100, efficiency=0.5, memory_efficiency=1.0, launch=0.0)
A100S = {"math": "none", "device": PLAIN, "link": pl.Link.ideal()}


def parameters_of(task):
    return sum(parameter.numel() for parameter in task.model.parameters())


def published(layers, hidden, heads, sequence, vocabulary):
    small = 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden)
    return 12 * layers * hidden**2 * (1 + small)


def layers_of(task, samples=3):
    tokens = torch.zeros(samples, task.data[0].shape[1], dtype=torch.int64, device="meta")
    return Layers.of(task, task.model, [tokens, tokens])


def test_gpt_3_has_its_published_174_6_billion_parameters():
    count = parameters_of(pl.models.GPT(**GPT3, batch_size=1536, tied=True))
    assert round(count / 1e9, 1) == 174.6
    assert (
        count == round(published(**GPT3)) + 2 * GPT3["hidden"]
    )  # those of the last norm, which the formula leaves out


def test_a_head_of_its_own_is_a_second_table_of_the_vocabulary():
    tied, own = (parameters_of(pl.models.GPT(**GPT3, batch_size=8, tied=tied)) for tied in (True, False))
    assert own - tied == GPT3["vocabulary"] * GPT3["hidden"]


@pytest.mark.parametrize("sizes", [GPT3, GPT3 | {"layers": 24, "hidden": 2304, "heads": 24}])
def test_operations_of_a_step_are_the_published_ones(sizes):
    """Of the whole square of pairs, as the formula has it: a causal attention needs half of that."""
    layers, hidden, sequence = sizes["layers"], sizes["hidden"], sizes["sequence"]
    forward = sum(part.flops for part in layers_of(pl.models.GPT(**sizes, batch_size=8)).model.parts)
    extra = sequence / (6 * hidden) + sizes["vocabulary"] / (12 * layers * hidden)
    assert 3 * forward == pytest.approx(72 * sequence * layers * hidden**2 * (1 + extra), rel=1e-9)
    with_recomputation = sequence / (6 * hidden) + sizes["vocabulary"] / (16 * layers * hidden)
    head = 2 * sequence * hidden * sizes["vocabulary"]  # which that formula does not recompute
    assert 4 * forward - head == pytest.approx(96 * sequence * layers * hidden**2 * (1 + with_recomputation))


def test_neither_model_nor_samples_have_memory():
    task = pl.models.GPT(**GPT3, batch_size=10**6)
    assert all(parameter.is_meta for parameter in task.model.parameters())
    assert all(tensor.untyped_storage().nbytes() == 8 for tensor in task.data)
    assert [tuple(tensor.shape) for tensor in task.data] == [(10**6, 2048)] * 2


def test_it_computes_a_loss_if_it_is_given_numbers():
    task = pl.models.GPT(**SMALL, batch_size=3)
    model = task.model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    tokens = torch.arange(12).reshape(3, 4) % 10
    loss = task.loss(model(tokens), tokens)
    assert loss.item() == pytest.approx(math.log(10), rel=0.1)


def test_what_comes_later_does_not_change_what_comes_before():
    model = pl.models.GPT(**SMALL, batch_size=3).model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9]])
    one, other = model(tokens)
    torch.testing.assert_close(one[:2], other[:2])
    assert not torch.equal(one[2], other[2])


def test_a_block_takes_its_heads_from_its_weights():
    """Half of the heads on each of two ranks: the halves of the outputs add up, as tensor parallelism has it."""
    attention = pl.models.GPT(**SMALL, batch_size=3).model.blocks[0].attention.to_empty(device="cpu")
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x, whole = torch.randn(3, 4, 8), dict(attention.named_parameters())
    parts = []
    for half in (slice(0, 4), slice(4, 8)):
        own = {name: value[half] for name, value in whole.items() if not name.startswith("out")}
        own |= {"out.weight": whole["out.weight"][:, half], "out.bias": whole["out.bias"] / 2}
        parts.append(functional_call(attention, own, (x,)))
    torch.testing.assert_close(sum(parts), attention(x))


def test_messages_have_the_bytes_of_the_dtype():
    wide, narrow = (
        layers_of(pl.models.GPT(**SMALL, batch_size=3, dtype=dtype)).cut(2).segments[0].bytes_out
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert (wide, narrow) == (4 * 8 * 4, 4 * 8 * 2)


def test_one_device_takes_the_operations_of_a_step_over_its_speed():
    task = pl.models.GPT(**SMALL | {"hidden": 512, "heads": 8, "sequence": 128}, batch_size=4)
    run = pl.train(task, "single", pl.Simulated(workers=1, **A100S), steps=2)
    parts = layers_of(task).model.parts
    names = ("flops", "moved_bytes", "weight_bytes")
    flops, moved, weights = (sum(getattr(part, name) for part in parts) for name in names)
    weights_s = 4 * weights / 2.039e12  # read twice, and the gradient is read and written
    update_s = 7 * 4 * parameters_of(task) / 2.039e12
    expected = 3 * 4 * (flops / 156e12 + moved / 2.039e12) + weights_s + update_s
    assert run.step_seconds == pytest.approx(expected, rel=1e-6)


def test_a_pipeline_of_even_stages_has_the_published_bubble():
    sizes = SMALL | {"layers": 4, "hidden": 1024, "heads": 8, "sequence": 64, "vocabulary": 4}
    task = pl.models.GPT(**sizes, batch_size=8, dtype=torch.bfloat16)
    run = pl.train(task, "pipeline:microbatches=8,order=1f1b", pl.Simulated(workers=4, **A100S), steps=1)
    assert run.trace.bubble == pytest.approx(3 / 11, abs=0.01)


def test_data_parallel_ranks_compute_a_share_of_the_batch():
    task = pl.models.GPT(**SMALL, batch_size=8)
    (one,), four = (
        [rank.compute_s for rank in pl.train(task, "all-reduce", cluster, steps=1).trace.summary().ranks]
        for cluster in (pl.Simulated(workers=workers, **A100S) for workers in (1, 4))
    )
    weights = sum(part.weight_bytes for part in layers_of(task).model.parts)
    weights_s = 4 * weights / 2.039e12  # for any number of samples
    assert four == pytest.approx([(one - weights_s) / 4 + weights_s] * 4)


@pytest.mark.parametrize("cluster", [pl.Local(workers=2), pl.Simulated(workers=2, device="A100")])
def test_elsewhere_it_is_refused_at_once(cluster):
    with refused("cluster", cluster, bound=has("pl.Simulated", "none")) as caught:
        pl.train(pl.models.GPT(**SMALL, batch_size=3), "all-reduce", cluster, steps=1)
    assert "pl.devices.A100" in str(caught.value)


@pytest.mark.parametrize("name", [*SMALL, "batch_size"])
@pytest.mark.parametrize("value", [0, 1.5, True])
def test_a_size_must_be_a_whole_number(name, value):
    with refused(name, value, bound=has(1)):
        pl.models.GPT(**{**SMALL, "batch_size": 3, name: value})


def test_heads_must_divide_the_width_and_a_dtype_must_be_one():
    with refused("hidden", 8, bound=has(3)):
        pl.models.GPT(**SMALL | {"heads": 3}, batch_size=3)
    for dtype in ("bfloat16", torch.int64):
        with refused("dtype", dtype):
            pl.models.GPT(**SMALL, batch_size=3, dtype=dtype)


def test_blocks_are_named_by_their_place():
    names = [part.name for part in layers_of(pl.models.GPT(**SMALL, batch_size=3)).model.parts]
    assert names == ["embedding", "blocks.0", "blocks.1", "norm", "head"]


LLAMA = {"gated": True, "norm": "rms", "positions": "rotary", "bias": False, "key_heads": 2, "ffn": 24}


def test_a_gated_model_with_grouped_queries_has_the_parameters_of_its_matrices():
    sizes = SMALL | {"hidden": 16, "heads": 4}
    task = pl.models.GPT(**sizes, **LLAMA, batch_size=3)
    block = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16
    assert parameters_of(task) == 2 * block + 16 + 2 * 10 * 16


@pytest.mark.parametrize("size", [2, 4])
def test_queries_that_share_a_key_stay_together_in_a_tensor_group(size):
    task = pl.models.GPT(**SMALL | {"hidden": 64, "heads": 8}, **LLAMA | {"key_heads": 4}, batch_size=3)
    tokens = torch.zeros(3, 4, dtype=torch.int64, device="meta")
    split = Layers.of(task, task.model, [tokens, tokens], tensor=size).model.shares.of
    query, key = (split[f"blocks.0.attention.{name}.weight"] for name in ("query", "key"))
    assert [query.stretch(rank, size) for rank in range(size)] == [
        tuple(2 * place for place in key.stretch(rank, size)) for rank in range(size)
    ]


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_stages_have_equal_numbers_of_blocks_where_possible(stages):
    cut = layers_of(pl.models.GPT(**SMALL | {"layers": 6}, batch_size=3)).cut(stages)
    assert [segment.first for segment in cut.segments[1:]] == [
        f"blocks.{number}" for number in range(6 // stages, 6, 6 // stages)
    ]


@pytest.mark.parametrize(("given", "recomputes"), [("none", False), ("full", True), (True, True)])
def test_recomputation_is_that_of_the_task(given, recomputes):
    assert pl.models.GPT(**SMALL, batch_size=3, recompute=given).recompute is recomputes


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_heads": 3},
        {"norm": "batch"},
        {"positions": "none"},
        {"recompute": "some"},
        {"ffn": 0},
        {"head_size": 1.5},
    ],
)
def test_an_unknown_kind_of_layer_is_refused(wrong):
    with refused(next(iter(wrong))):
        pl.models.GPT(**SMALL | {"heads": 4} | wrong, batch_size=3)
