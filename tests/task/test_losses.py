from dataclasses import dataclass

import pytest
import torch
from refusals import has, raised, refused
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.errors import WorkerError
from paceline.task.losses import checked_loss, loss_of_outputs

GRADED = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize("loss", [GRADED.sum(), GRADED.sum().reshape(1), GRADED[:1]])
def test_a_loss_is_a_tensor_of_one_element(loss):
    assert checked_loss(loss) is loss


@pytest.mark.parametrize(
    ("loss", "refusal"),
    [
        ((GRADED.sum(), GRADED), refused("loss", has(2, 3))),
        ([GRADED.sum()], refused("loss", has(1))),
        (GRADED * 1, refused("loss", has(3, "torch.float32"), remedy=has("none"))),
        (0.5, refused("loss", has("float"))),
        (None, refused("loss", has("NoneType"))),
        ({"loss": GRADED.sum()}, refused("loss")),
        (GRADED.sum().detach(), refused("loss", remedy=has("torch.no_grad"))),
    ],
)
def test_anything_else_is_refused_by_name(loss, refusal):
    with refusal as caught:
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
    with refused("loss") as caught:
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
        refused("loss"),
    ),
    "each sample": (
        {"loss": nn.MSELoss(reduction="none")},
        refused("loss", has(2)),
    ),
    "dictionary": ({"model": Dictionary}, refused("loss", has("dict", "logits"))),
    "metric": (
        {"model": Scores, "loss": lambda outputs, _: outputs["scores"].mean(), "metric": "mse"},
        refused("metric 'mse'", has("dict", "scores")),
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("changes", "refusal"), WRONG.values(), ids=WRONG)
def test_a_run_is_refused_by_the_arguments_name(changes, refusal, world):
    with refusal:
        pl.train(a_task(test=samples(6), **changes), "all-reduce", WORLDS[world](2), steps=1)


def test_a_bug_in_a_loss_of_tensors_keeps_its_traceback():
    def broken(outputs, targets):
        return outputs.nonsense

    with raised(WorkerError, traceback=has("in broken")):
        pl.train(a_task(loss=broken), "all-reduce", simulated(2), steps=1)
