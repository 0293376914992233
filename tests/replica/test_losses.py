from dataclasses import dataclass

import pytest
import torch
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.errors import ConfigurationError, WorkerError
from paceline.replica.losses import checked_loss, loss_of_outputs

GRADED = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize("loss", [GRADED.sum(), GRADED.sum().reshape(1), GRADED[:1]])
def test_a_loss_is_a_tensor_of_one_element(loss):
    assert checked_loss(loss) is loss


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ((GRADED.sum(), GRADED), r"'a tuple of 2: of shape \(\) .*; of shape \(3,\) .*sum of its parts"),
        ([GRADED.sum()], "'a list of 1: of shape"),
        (GRADED * 1, r"'a tensor of shape \(3,\) and torch.float32'; return the mean.*reduction='none'"),
        (0.5, "'of type float'; return the mean"),
        (None, "'of type NoneType'"),
        ({"loss": GRADED.sum()}, "'of type dict with loss'"),
        (GRADED.sum().detach(), "depend on a trainable parameter, .*torch.no_grad"),
    ],
)
def test_anything_else_is_refused_by_name(loss, words):
    with pytest.raises(ConfigurationError, match=f"loss must .*{words}") as caught:
        checked_loss(loss)
    assert caught.value.argument == "loss"


@dataclass
class Output:
    logits: torch.Tensor


@pytest.mark.parametrize(
    ("outputs", "look"),
    [
        ({"logits": GRADED, "hidden": GRADED}, "of type dict with logits, hidden"),
        ((GRADED, GRADED), "of type tuple"),
        (Output(GRADED), "of type Output"),
    ],
)
def test_outputs_that_a_plain_loss_cannot_take_are_refused_with_what_they_are(outputs, look):
    with pytest.raises(ConfigurationError, match="loss must take what the model returns") as caught:
        loss_of_outputs(nn.functional.mse_loss, outputs, torch.zeros(3))
    assert look in str(caught.value)
    assert "outputs['logits']" in str(caught.value)
    assert "Traceback" in str(caught.value)


def test_a_loss_that_knows_what_to_take_out_is_called_as_it_is():
    loss = loss_of_outputs(lambda outputs, target: outputs["logits"].sum(), {"logits": GRADED}, None)
    assert loss == 3


def test_of_a_tensor_errors_are_the_losses_own():
    with pytest.raises(RuntimeError, match="size"):
        loss_of_outputs(lambda outputs, targets: (outputs - targets).sum(), GRADED, torch.zeros(2))


# In a run


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, inputs):
        return {"logits": self.layer(inputs)}


class Scores(Dictionary):
    def forward(self, inputs):
        return {"scores": self.layer(inputs)}


WRONG = {
    "tuple": (
        {"loss": lambda outputs, targets: (outputs.mean(), targets.mean())},
        "loss must be a tensor of one element",
    ),
    "each sample": (
        {"loss": nn.MSELoss(reduction="none")},
        r"loss must be a tensor of one element, .*of shape \(\d, 2\)",
    ),
    "dictionary": ({"model": Dictionary}, "(?s)loss must take what the model returns.*dict with logits"),
    "metric": (
        {"model": Scores, "loss": lambda outputs, _: outputs["scores"].mean(), "metric": "mse"},
        "(?s)metric 'mse' must take the outputs and targets.*dict with scores",
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_a_run_is_refused_by_the_arguments_name(changes, words, world):
    with pytest.raises(ConfigurationError, match=words):
        pl.train(a_task(test=samples(6), **changes), "all-reduce", WORLDS[world](2), steps=1)


def test_a_bug_in_a_loss_of_tensors_keeps_its_traceback():
    def broken(outputs, targets):
        return outputs.nonsense

    with pytest.raises(WorkerError, match="in broken"):
        pl.train(a_task(loss=broken), "all-reduce", simulated(2), steps=1)
