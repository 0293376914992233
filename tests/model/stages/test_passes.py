import pytest
import torch
from torch import nn

from paceline.context import BoundaryValues
from paceline.model.memory import Ledger
from paceline.model.stages.passes import PassEnvironment, Passes


def passes_of(layer, taken):
    def take(weights, found):
        taken.append(found)

    return Passes(lambda _, values: [layer(values[0])], list(layer.parameters()), take)


def test_a_value_that_no_output_depends_on_has_a_gradient_of_zero():
    taken = []
    layer = nn.Linear(3, 2)
    passes = Passes(
        lambda _, values: [layer(values[0])], list(layer.parameters()), lambda *_: taken.append(1)
    )
    made = passes.forward(0, None, BoundaryValues((torch.ones(2, 3), torch.ones(2, 3)), (True, True)))
    first, second = passes.backward(0, [torch.ones_like(made.tensors[0])])
    assert torch.equal(second, torch.zeros(2, 3))
    assert not torch.equal(first, second)


def test_a_value_that_only_passes_by_keeps_its_gradient():
    layer = nn.Linear(3, 2)
    passes = Passes(
        lambda _, values: [layer(values[0]), values[1]], list(layer.parameters()), lambda *_: None
    )
    for parted in (False, True):
        passes.forward(0, None, BoundaryValues((torch.ones(2, 3), torch.ones(4)), (True, True)))
        walk = passes.backward_inputs if parted else passes.backward
        _, passed = walk(0, [torch.ones(2, 2), torch.arange(4.0)])
        assert torch.equal(passed, torch.arange(4.0))


def test_what_crosses_is_apart_from_the_graph():
    passes = passes_of(nn.Linear(3, 2), [])
    made = passes.forward(0, None, BoundaryValues((torch.ones(2, 3),), (True,)))
    assert made.wanted == (True,)
    assert not made.tensors[0].requires_grad


def test_random_numbers_go_on_only_if_some_were_drawn():
    plain = passes_of(nn.Linear(3, 2), []).forward(0, None, BoundaryValues((torch.ones(2, 3),), (True,)))
    assert plain.chance is None
    layer = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    drawn = passes_of(layer, []).forward(0, None, BoundaryValues((torch.ones(2, 3),), (True,)))
    assert torch.equal(drawn.chance, torch.default_generator.get_state())


def test_the_weight_of_a_loss_is_in_its_gradients():
    layer, taken = nn.Linear(3, 1), []
    passes = Passes(
        lambda _, values: layer(values[0]), list(layer.parameters()), lambda _, found: taken.append(found)
    )
    loss = passes.forward(
        0, None, BoundaryValues((torch.ones(2, 3),), (False,)), lambda made: made.mean(), 0.25
    )
    assert loss == pytest.approx(layer(torch.ones(2, 3)).mean().item())
    passes.backward(0, ())
    torch.testing.assert_close(taken[0][1], torch.tensor([0.25]))


def counted_passes(layer, **how):
    ledger = Ledger()
    around = PassEnvironment(account=ledger.account(), state=lambda: list(layer.parameters()), **how)
    passes = Passes(lambda _, values: [layer(values[0])], list(layer.parameters()), lambda *_: None, around)
    return passes, ledger


def given(samples=2):
    return BoundaryValues((torch.ones(samples, 3),), (True,))


def test_activations_are_held_from_forward_to_backward():
    passes, ledger = counted_passes(nn.Linear(3, 2))
    one = 4 * 2 * 3  # its inputs, because only other layers need its output
    for micro in range(3):
        passes.forward(micro, None, given(), samples=2)
        assert ledger.now["activations"] == (micro + 1) * one
    passes.backward(0, [torch.ones(2, 2)])
    assert ledger.now["activations"] == 2 * one
    passes.backward_inputs(1, [torch.ones(2, 2)])
    assert ledger.now["activations"] == 2 * one
    passes.backward_weights(1)
    assert ledger.now["activations"] == one


def test_micro_batches_of_another_size_have_activations_of_another_size():
    passes, ledger = counted_passes(nn.Linear(3, 2))
    for samples in (2, 1, 2):
        passes.forward(samples + ledger.now["activations"], None, given(samples), samples=samples)
    assert ledger.now["activations"] == 4 * 3 * (2 + 1 + 2)


def test_what_this_rank_keeps_anyway_does_not_count_again():
    layer = nn.Tanh()  # it stores its output
    passes, ledger = counted_passes(layer)
    behind, _ = counted_passes(nn.Linear(3, 2))
    made = passes.forward(0, None, given(), samples=2)
    assert passes.bytes_of(2).stays == (True,)
    behind.forward(0, None, made, samples=2, shared=passes.bytes_of(2).stays)
    assert ledger.now["activations"] == 2 * 4 * 2 * 3, "what came to it, and what it gives"
    assert behind.bytes_of(2).kept == 0
    assert behind.bytes_of(2).stays == (False,)


@pytest.mark.parametrize("parted", [False, True])
def test_a_forward_that_is_computed_again_leaves_its_inputs_only(parted):
    layer = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Dropout(0.5), nn.Linear(50, 2))
    results = []
    for recomputes in (False, True):
        torch.manual_seed(3)
        passes, ledger = counted_passes(layer, recomputes=recomputes)
        passes.forward(0, None, given(), samples=2)
        left = ledger.now["activations"]
        walk = passes.backward_inputs if parted else passes.backward
        results.append(walk(0, [torch.ones(2, 2)]))
        if parted:
            passes.backward_weights(0)
        assert ledger.now["activations"] == 0
    assert left == 4 * 2 * 3
    assert ledger.peak["activations"] > 4 * 2 * 50
    assert torch.equal(results[0][0], results[1][0])
