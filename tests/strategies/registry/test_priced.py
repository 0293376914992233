"""16-bit precision in simulations without computation and in predictions: the published bytes of ZeRO."""

import dataclasses

import pytest
import torch
from refusals import has, refused
from tasks import a_task
from torch import nn

import paceline as pl

COUNT = 4 * 64 + 64 + 64 * 2 + 2


def model():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))


def task_of(precision="bf16", **changes):
    data = torch.zeros(32, 4), torch.zeros(32, 2)
    given = {"model": model, "data": data, "optimizer": torch.optim.Adam, "precision": precision}
    return a_task(**(given | changes))


def priced(workers):
    return pl.Simulated(workers=workers, math="none", device=pl.devices.A100)


def bytes_of(memory):
    return memory["parameters"] + memory["gradients"] + memory["optimizer"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("spec", "per_parameter"), [("single", 16), ("all-reduce", 16), ("zero:stage=1", 4 + 12 / 4)]
)
def test_one_micro_batch_takes_the_published_bytes(spec, per_parameter, precision):
    run = pl.train(task_of(precision), spec, priced(1 if spec == "single" else 4), steps=1)
    for memory in run.memory:
        assert bytes_of(memory) == pytest.approx(per_parameter * COUNT, abs=16)  # shards may be uneven


@pytest.mark.parametrize(("spec", "kept"), [("zero:stage=2", 2 + 14 / 4), ("zero:stage=3", 16 / 4)])
def test_shards_take_the_published_bytes_beside_the_segments_in_use(spec, kept):
    memory = pl.train(task_of(), spec, priced(4), steps=1).memory[0]
    assert memory["optimizer"] == pytest.approx(12 / 4 * COUNT, abs=16)
    assert kept * COUNT - 16 <= bytes_of(memory) <= (kept + 4) * COUNT


def test_several_micro_batches_accumulate_in_32_bits():
    one, two = (
        pl.train(task_of(accumulate=count), "all-reduce", priced(2), steps=1).memory[0] for count in (1, 2)
    )
    assert one["gradients"] == 2 * COUNT
    assert two["gradients"] == 4 * COUNT
    pipelined = pl.train(task_of(), "pipeline:microbatches=4", priced(1), steps=1).memory[0]
    assert pipelined["gradients"] == 4 * COUNT


@pytest.mark.parametrize(
    "spec", ["all-reduce", "zero:stage=1", "zero:stage=2", "sync", "pipeline:microbatches=2"]
)
def test_predictions_and_simulations_have_the_same_bytes(spec):
    run = pl.train(task_of(), spec, priced(2), steps=1)
    found = pl.predict(task_of(), spec, priced(2))
    assert found.memory_bytes == pytest.approx(max(each["total"] for each in run.memory), rel=0.02)


def test_16_bits_halve_the_bytes_of_gradients_and_activations():
    runs = [pl.train(task_of(each), "all-reduce", priced(2), steps=1) for each in ("fp32", "bf16")]
    assert runs[1].bytes_sent == [nbytes / 2 for nbytes in runs[0].bytes_sent]
    assert runs[1].memory[0]["activations"] < 0.6 * runs[0].memory[0]["activations"]


def test_a_plan_takes_16_bits():
    found = pl.plan(task_of(), priced(2), strategies="all-reduce,zero", workers=2)
    assert found.best.prediction.memory_bytes < 16 * COUNT + 4096


def test_a_dataset_and_a_model_of_shapes_can_have_16_bits():
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            return torch.zeros(4), torch.zeros(2)

    pl.train(task_of(data=Pairs()), "all-reduce", priced(2), steps=1)
    pl.train(task_of(data=Pairs), "all-reduce", priced(2), steps=1)
    sizes = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 2, "vocabulary": 8, "batch_size": 4}
    given = pl.models.GPT(**sizes, dtype=torch.bfloat16, master_dtype=torch.float32)
    short = dataclasses.replace(pl.models.GPT(**sizes), precision="bf16")
    runs = [pl.train(each, "zero:stage=1", priced(2), steps=1) for each in (given, short)]
    assert runs[0].memory == runs[1].memory
    assert runs[0].seconds == runs[1].seconds


def test_what_has_no_price_in_16_bits_is_refused():
    with refused("precision", "bf16", bound=has("measured")):
        pl.predict(task_of(), "all-reduce", pl.Simulated(workers=2))
    with refused("precision", "bf16", bound=has("torch.float64")):
        pl.train(task_of(model=lambda: model().double()), "all-reduce", priced(2), steps=1)
    for argument in ("master_dtype", "gradient_dtype"):
        with refused(argument, torch.float32, bound=has("precision")):
            pl.train(task_of(**{argument: torch.float32}), "all-reduce", priced(2), steps=1)
