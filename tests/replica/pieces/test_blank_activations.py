import dataclasses
from functools import partial

import pytest
from by_hand import cut_of, first_batch
from pieces_models import task_of

from paceline.context import Crossing
from paceline.replica.memory import Ledger
from paceline.replica.pieces.blank_activations import BlankActivations
from paceline.replica.pieces.cutting import few_samples
from paceline.replica.pieces.part import PartReplica
from paceline.replica.replica import Replica
from paceline.replica.shapes import ShapeReplica

SEGMENTS = 3


def with_data(task):
    """The bytes after each forward pass and after each backward pass."""
    samples, batch = first_batch(task)
    whole, ledger = Replica(task, task.build_model(0)), Ledger()
    whole.account_in(ledger)
    part = PartReplica(whole, cut_of(task, SEGMENTS), range(SEGMENTS), keeps_whole=False)
    found, given = [], Crossing()
    for segment in range(SEGMENTS):
        made = part.forward(segment, batch, 0, samples, given)
        found.append(ledger.now["activations"])
        given = made if isinstance(made, Crossing) else given
    gradients = ()
    for segment in reversed(range(SEGMENTS)):
        gradients = part.backward(segment, 0, gradients)
        found.append(ledger.now["activations"])
    return found, ledger.peak["activations"]


def without_data(task):
    samples, batch = first_batch(task)
    ledger, whole = Ledger(), ShapeReplica(task, task.build_model(0).to("meta"))
    few = partial(few_samples, samples, batch)
    blank, found = BlankActivations(ledger.account(), whole, cut_of(task, SEGMENTS), few), []
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
