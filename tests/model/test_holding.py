"""The part of a model that a rank stores, and its bytes."""

import itertools

import pytest
import torch
from by_hand import cut_of
from conformance.cases import one_in
from refusals import refused
from segmented_models import task_of
from tasks import a_task, simulated
from tensor_by_hand import cut_in
from torch import nn

import paceline as pl
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.holding import Holding, Sharding, StateRange
from paceline.model.layout import Layout
from paceline.model.memory import Ledger
from paceline.model.replica import Replica
from paceline.model.stages.stripping import stripped


def whole_of(kind):
    task = task_of(kind)
    return task, Holding.of(task.build_model(0))


def mixed():
    model = nn.Sequential(nn.Linear(4, 8).to(torch.bfloat16), nn.Linear(8, 2), nn.Linear(2, 2))
    model[2].requires_grad_(False)
    return model


def test_a_whole_model_has_a_master_copy_narrow_copies_and_frozen_parameters():
    holding = Holding.of(mixed())
    trained, narrow, frozen = 4 * 8 + 8 + 8 * 2 + 2, 2 * (4 * 8 + 8), 4 * (2 * 2 + 2)
    assert holding.parameter_bytes == 4 * trained + narrow + frozen
    assert holding.gradient_bytes == 4 * trained
    assert holding.layout.dtype == holding.reduction_dtype == torch.float32


@pytest.mark.parametrize("kind", ["perceptron", "gpt"])
def test_the_layout_of_a_part_is_that_of_its_module(kind):
    task, whole = whole_of(kind)
    cut = cut_of(task, 3)
    for number in range(3):
        module = stripped(task.build_model(0), cut, [number])
        assert whole.part(cut, [number]).layout == Layout.of(module)


def test_a_part_of_split_parameters_has_their_share():
    task = task_of("gpt")
    cut, whole = cut_in(task, 2), Holding.of(task.build_model(0))
    held = range(len(cut.segments))
    parts = [whole.part(cut.at(position), held) for position in range(2)]
    assert [part.position for part in parts] == [0, 1]
    assert sum(part.parameter_bytes for part in parts) < 2 * whole.parameter_bytes
    assert all(part.layout.within for part in parts)


@pytest.mark.parametrize("frees_parameters", [False, True])
def test_shards_of_all_ranks_make_up_the_model(frees_parameters):
    task, whole = whole_of("gpt")
    cut = cut_of(task, 1, finer=4)
    ranks = [whole.sharded(cut, Sharding(3, own, frees_parameters), elementwise=True) for own in range(3)]
    assert sum(each.gradient_bytes for each in ranks) == whole.gradient_bytes
    stored = sum(each.parameter_bytes for each in ranks)
    assert stored == (1 if frees_parameters else 3) * whole.parameter_bytes
    assert (
        sum(each.unit_bytes(n) for each in ranks[:1] for n in range(len(each.units))) == whole.layout.nbytes
    )


def test_optimizer_state_is_that_of_the_values_that_a_rank_updates():
    task, whole = whole_of("gpt")
    cut, length = cut_of(task, 2, finer=2), whole.layout.length
    state = [StateRange(0, length, 2 * whole.layout.nbytes)]
    assert whole.optimizer_bytes(whole.layout, state) == 2 * whole.layout.nbytes
    assert whole.optimizer_bytes(whole.layout, state, slice(3, 13)) == 2 * 10 * whole.layout.dtype.itemsize
    part = whole.part(cut, [0, 1])
    assert part.optimizer_bytes(whole.layout, state) == 2 * part.layout.nbytes
    shards = [part.sharded(cut, Sharding(2, own, True), elementwise=True) for own in range(2)]
    assert sum(each.optimizer_bytes(whole.layout, state) for each in shards) == 2 * part.layout.nbytes


def test_the_places_of_a_parameter_in_the_shards_of_all_ranks_make_up_the_parameter():
    task, whole = whole_of("gpt")
    cut = cut_of(task, 1, finer=3)
    ranks = [whole.sharded(cut, Sharding(3, own, True), elementwise=True) for own in range(3)]
    for name, shape in zip(whole.layout.names, whole.layout.shapes, strict=True):
        places = [each.places[name] for each in ranks]
        assert sum(place.stop - place.start for place in places) == shape.numel()


@pytest.mark.parametrize(
    ("sharding", "segments"),
    one_in(
        4,
        itertools.product([None, Sharding(2, 1, False), Sharding(2, 1, True)], [[0, 1], [2, 3], None]),
    ),
)
def test_a_replica_that_computes_and_one_of_shapes_record_the_same_memory(sharding, segments):
    task = task_of("resnet")
    cut = cut_of(task, 2, finer=2)
    found = []
    for make in (
        lambda: Replica.of(task, task.build_model(0)),
        lambda: Replica.of_shapes(ShapeModel(task, task.build_model(0).to("meta"))),
    ):
        replica, ledger = make(), Ledger()
        replica.attach(ledger, lambda: None)
        if sharding is not None:
            replica.sharded(cut, sharding, segments)
        else:
            replica.part(cut, range(4) if segments is None else segments)
        found.append(ledger.now)
    assert found[0] == found[1]


def test_a_rank_that_holds_some_segments_does_not_count_the_parameters_of_others():
    task, whole = whole_of("gpt")
    cut, ledger = cut_of(task, 2, finer=2), Ledger()
    replica = Replica.of(task, task.build_model(0))
    replica.attach(ledger, lambda: None)
    held = replica.sharded(cut, Sharding(2, 0, False), [0, 1])
    assert ledger.now["parameters"] == held.parameters.nbytes < whole.parameter_bytes


def test_a_task_of_one_layer_is_held_whole():
    task = a_task(model=lambda: nn.Linear(4, 2).double())
    assert Holding.of(task.build_model(0)).own_slices is None


@pytest.mark.parametrize(
    ("spec", "per_parameter"),
    [
        ("single", lambda ranks: 16),
        ("zero:stage=1", lambda ranks: 4 + 12 / ranks),
        ("hybrid:zero=1", lambda ranks: 4 + 12 / ranks),
        ("zero:stage=2", lambda ranks: 2 + 14 / ranks),
    ],
)
def test_mixed_precision_takes_the_published_bytes(spec, per_parameter):
    """Rajbhandari et al., ZeRO: Adam with 16-bit parameters and a master copy of 32 bits."""
    sizes = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 2, "vocabulary": 8, "batch_size": 4}
    task = pl.models.GPT(**sizes, dtype=torch.bfloat16, master_dtype=torch.float32)
    workers = 1 if spec == "single" else 4
    run = pl.train(task, spec, pl.Simulated(workers=workers, math="none", device="A100"), steps=1)
    count = sum(each.numel() for each in task.model.parameters())
    for memory in run.memory:
        # Beside its shard, stage 2 has the gradients of a segment until they are summed.
        gradients = 2 * count / workers if spec == "zero:stage=2" else memory["gradients"]
        static = memory["parameters"] + gradients + memory["optimizer"]
        assert static == pytest.approx(per_parameter(workers) * count, abs=64)


def test_a_holding_has_dtypes_for_parameters_sums_and_a_master_copy():
    module = nn.Linear(4, 3).to(torch.bfloat16)
    holding = Holding.of(module, master_dtype=torch.float32, reduction_dtype=torch.float32)
    assert (holding.parameter_bytes, holding.gradient_bytes) == (2 * 15, 4 * 15)
    state = [StateRange(0, 15, 2 * 2 * 15)]  # two moments of 16 bits
    assert holding.optimizer_bytes(holding.layout, state) == (4 + 2 * 4) * 15
    assert holding.optimizer_bytes(holding.layout, state, slice(0, 5)) == (4 + 2 * 4) * 5
    assert Holding.of(module, master_dtype=torch.bfloat16).master_dtype is None


@pytest.mark.parametrize("argument", ["master_dtype", "gradient_dtype"])
def test_dtypes_of_a_simulation_are_refused_where_they_would_be_computed(argument):
    task = a_task(**{argument: torch.float64})
    with refused(argument, torch.float64):
        pl.train(task, "single", simulated(1), steps=1)
    with refused(argument, "float32"):
        a_task(**{argument: "float32"})


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=1", "zero:stage=3", "hybrid:pipeline=2,zero=2"])
def test_gradients_of_32_bits_are_sent_and_stored(spec):
    sizes = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 2, "vocabulary": 8, "batch_size": 4}
    cluster = pl.Simulated(workers=4, math="none", device="A100", link=pl.Link("10Gbps", "5us"))
    narrow, wide = (
        pl.models.GPT(**sizes, dtype=torch.bfloat16, gradient_dtype=dtype) for dtype in (None, torch.float32)
    )
    runs = [pl.train(task, spec, cluster, steps=1) for task in (narrow, wide)]
    ratio = sum(runs[1].bytes_sent) / sum(runs[0].bytes_sent)
    sent = {"all-reduce": 2.0, "zero:stage=1": 1.5}  # ZeRO gathers parameters, which are as narrow as before
    assert ratio == pytest.approx(sent[spec]) if spec in sent else 1 < ratio < 2
    held, more = ([each["gradients"] for each in run.memory] for run in runs)
    if spec in sent:  # the others have their peaks at different times
        assert more == [2 * each for each in held]
