"""Segments computed one by one give the gradients of the whole model."""

import itertools

import pytest
import torch
from by_hand import compute_by_hand, compute_whole, cut_of, first_batch
from conformance.cases import one_in
from segmented_models import KINDS, SmallGPT, gpt_task, task_of
from torch import nn

from paceline.context import BoundaryValues
from paceline.model.replica import Replica
from paceline.model.steps import micro_batches

TASKS = {kind: task_of(kind) for kind in KINDS}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "parted"), one_in(3, itertools.product(KINDS, [False, True])))
def test_segments_one_by_one_give_the_gradients_of_the_whole_model(kind, parted):
    task = TASKS[kind]
    expected_loss, expected, buffers = compute_whole(task)
    for segments in (1, 2, 4):
        loss, found, found_buffers = compute_by_hand(task, segments, parted=parted)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        check_equal(found, expected)
        check_equal(found_buffers, buffers)


@pytest.mark.parametrize("kind", ["perceptron", "gpt", pytest.param("encoder", marks=pytest.mark.slow)])
@pytest.mark.parametrize("microbatches", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8)), 20])
def test_micro_batches_of_any_size_add_up_to_the_batch(kind, microbatches):
    task = TASKS[kind]
    _, expected, _ = compute_whole(task)
    for parted in (False, True):
        _, found, _ = compute_by_hand(task, 3, microbatches=microbatches, parted=parted)
        check_equal(found, expected)


@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_with_micro_batches_dropout_and_batch_norm_are_those_of_a_task_that_accumulates(kind):
    changes = {"dropout": 0.4} if kind == "gpt" else {}
    loss, expected, buffers = compute_whole(task_of(kind, accumulate=3, **changes), step=1)
    found_loss, found, found_buffers = compute_by_hand(task_of(kind, **changes), 4, microbatches=3, step=1)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    check_equal(found, expected)
    check_equal(found_buffers, buffers)


def test_dropout_of_a_whole_batch_is_that_of_the_whole_model():
    task = gpt_task(dropout=0.3)
    _, expected, _ = compute_whole(task)
    check_equal(compute_by_hand(task, 3)[1], expected)
    assert not torch.allclose(expected["tokens.weight"], compute_whole(gpt_task())[1]["tokens.weight"])


def test_a_frozen_layer_gets_no_gradient_and_passes_those_of_others_on():
    def model():
        made = SmallGPT().double()
        made.blocks[1].requires_grad_(False)
        made.places.requires_grad_(False)
        return made

    task = gpt_task(model=model)
    _, expected, _ = compute_whole(task)
    assert not any(name.startswith(("blocks.1.", "places")) for name in expected)
    for parted in (False, True):
        check_equal(compute_by_hand(task, 4, parted=parted)[1], expected)


def test_what_wants_no_gradient_is_said_to_want_none():
    def model():
        made = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        made[0].requires_grad_(False)
        return made

    task = task_of("perceptron", model=model)
    samples, batch = first_batch(task)
    cut = cut_of(task, 2, ["2"])
    part = Replica.of(task, task.build_model(0)).part(cut, [0, 1])
    crossing = part.forward(0, batch, 0, samples, BoundaryValues())
    assert crossing.wanted == (False,)
    part.forward(1, batch, 0, samples, crossing)
    assert part.backward(1, 0, ()) == []


def test_parameters_of_other_segments_take_no_memory():
    task = TASKS["gpt"]
    cut = cut_of(task, 4)
    for number, segment in enumerate(cut.segments):
        part = Replica.of(task, task.build_model(0)).part(cut, [number])
        assert set(part.layout.names) == set(segment.parameters)
        assert part.parameters.numel() == segment.parameter_count
        others = {n: p for n, p in part.module.named_parameters() if n not in segment.parameters}
        assert all(parameter.is_meta for parameter in others.values())


@pytest.mark.parametrize("keeps_whole", [False, True])
def test_the_whole_replicas_memory_is_let_go_of(keeps_whole):
    whole = Replica.of(TASKS["gpt"], TASKS["gpt"].build_model(0))
    whole.build()
    whole.part(cut_of(TASKS["gpt"], 2), [0], keeps_whole=keeps_whole)
    assert whole.gradient.untyped_storage().nbytes() == 0
    assert whole.parameters.untyped_storage().nbytes() == 0


def test_a_reporters_whole_parameters_take_memory_until_the_next_batch_only():
    whole = Replica.of(TASKS["gpt"], TASKS["gpt"].build_model(0))
    size = whole.parameters.nbytes
    part = whole.part(cut_of(TASKS["gpt"], 2), [0], keeps_whole=True)
    part.inspection.put([0], part.parameters, part.inspection.held_buffers())
    assert whole.parameters.untyped_storage().nbytes() == size
    part.begin_batch()
    assert whole.parameters.untyped_storage().nbytes() == 0


def test_a_tied_weight_is_held_at_both_ends():
    segments = cut_of(TASKS["gpt"], 3).segments
    assert ["tokens.weight" in segment.parameters for segment in segments] == [True, False, True]


def test_the_reporter_puts_the_whole_model_together_by_name():
    task = task_of("resnet")
    cut = cut_of(task, 3)
    whole = Replica.of(task, task.build_model(0))
    whole.build()
    reporter = whole.part(cut, [0], keeps_whole=True)
    expected = {}
    for number in range(3):
        part = Replica.of(task, task.build_model(0)).part(cut, [number])
        part.parameters.add_(number + 1)
        for name, buffer in part.module.named_buffers():
            if name in cut.segments[number].buffers:
                buffer.add_(10 * (number + 1))
                expected[name] = buffer.clone()
        views = part.layout.views(part.parameters)
        expected |= {name: view.clone() for name, view in zip(part.layout.names, views, strict=True)}
        reporter.inspection.put([number], part.parameters, part.inspection.held_buffers())
    state = reporter.inspection.state()
    assert state.keys() == expected.keys()
    check_equal(state, expected)


def test_activations_are_kept_until_the_weights_are_done():
    task = task_of("perceptron")
    samples, batch = first_batch(task)
    part = Replica.of(task, task.build_model(0)).part(cut_of(task, 1), [0])
    micros = micro_batches(batch, 2)
    for number, micro in enumerate(micros):
        part.forward(0, micro, number, samples, BoundaryValues())
    assert part.engine.passes.segments.in_flight == 2
    part.backward(0, 0, (), "inputs")
    assert part.engine.passes.segments.in_flight == 2
    part.backward(0, 0, (), "weights")
    part.backward(0, 1, ())
    assert part.engine.passes.segments.in_flight == 0
