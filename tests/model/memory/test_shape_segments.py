import dataclasses
from functools import partial

import pytest
from by_hand import cut_of, first_batch
from segmented_models import task_of

from paceline.context import BoundaryValues
from paceline.model.cutting.layers import few_samples
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.memory import Ledger
from paceline.model.memory.shape_segments import SegmentActivations
from paceline.model.replica import Replica

SEGMENTS = 3


def with_data(task):
    """The bytes after each forward pass and after each backward pass."""
    samples, batch = first_batch(task)
    whole, ledger = Replica.of(task, task.build_model(0)), Ledger()
    whole.attach(ledger, partial(few_samples, samples, batch))
    part = whole.part(cut_of(task, SEGMENTS), range(SEGMENTS))
    found, given = [], BoundaryValues()
    for segment in range(SEGMENTS):
        made = part.forward(segment, batch, 0, samples, given)
        found.append(ledger.now["activations"])
        given = made if isinstance(made, BoundaryValues) else given
    gradients = ()
    for segment in reversed(range(SEGMENTS)):
        gradients = part.backward(segment, 0, gradients)
        found.append(ledger.now["activations"])
    return found, ledger.peak["activations"]


def without_data(task):
    samples, batch = first_batch(task)
    ledger, model = Ledger(), ShapeModel(task, task.build_model(0).to("meta"))
    few = partial(few_samples, samples, batch)
    blank, found = SegmentActivations(ledger.account(), model, cut_of(task, SEGMENTS), few), []
    for segment in range(SEGMENTS):
        blank.forward(segment, 0, batch.count)
        found.append(ledger.now["activations"])
    for segment in reversed(range(SEGMENTS)):
        blank.backward(segment, 0)
        blank.end(segment, 0)
        found.append(ledger.now["activations"])
    return found, ledger.peak["activations"]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["perceptron", "resnet"])
def test_segments_without_data_leave_as_much_as_those_with_data(kind, recompute):
    task = dataclasses.replace(task_of(kind), recompute=recompute)
    found, peak = with_data(task)
    assert found[-1] == 0
    assert (found, peak) == without_data(task)


def test_what_an_attention_leaves_without_data_is_about_what_it_leaves_with_data():
    # With data torch chooses another way to compute it, by the processor.
    task = task_of("gpt")
    (found, peak), (blank, blank_peak) = with_data(task), without_data(task)
    assert blank_peak == pytest.approx(peak, rel=0.15)
    assert blank == pytest.approx(found, rel=0.15)
