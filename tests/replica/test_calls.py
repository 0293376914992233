from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import ConfigurationError
from paceline.replica.calls import TARGETS, loss_of, outputs_of, target_of

Pair = namedtuple("Pair", ["image", "label"])
X, Y = torch.arange(6.0).view(3, 2), torch.tensor([[1.0], [2.0], [3.0]])


class Summed(nn.Module):
    """Says by what names it was given what."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 1))

    def forward(self, x=None, **named):
        self.given = sorted(named)
        outputs = (x if x is not None else named["values"]) @ self.weight
        loss = (outputs - named["labels"]).square().mean() if "labels" in named else None
        return SimpleNamespace(loss=loss, logits=outputs) if "labels" in named else outputs


def task(loss=nn.functional.mse_loss):
    return pl.Task(
        model=Summed, data=(X, Y), loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=1), batch_size=3
    )


EXPECTED = nn.functional.mse_loss(X.sum(1, keepdim=True), Y).item()


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], Pair(X, Y), {"values": X, "target": Y}], ids=str)
def test_a_target_is_kept_from_the_model_and_given_to_the_loss(batch):
    model = Summed()
    assert loss_of(task(), model, batch).item() == EXPECTED
    assert "target" not in model.given


def test_without_a_loss_the_model_gets_every_entry_and_its_own_loss_counts():
    model = Summed()
    assert loss_of(task(loss=None), model, {"values": X, "labels": Y}).item() == EXPECTED
    assert model.given == ["labels", "values"]


def test_a_model_may_return_its_loss_under_a_key():
    class Keyed(nn.Module):
        def forward(self, x):
            return {"loss": x.sum()}

    assert loss_of(task(loss=None), Keyed(), X).item() == X.sum()


def test_a_loss_that_nobody_computes_is_refused():
    with pytest.raises(ConfigurationError, match="Task\\(loss=…\\)"):
        loss_of(task(loss=None), Summed(), (X, Y))


@pytest.mark.parametrize("batch", [X, (X,), {"values": X}], ids=["tensor", "single", "dictionary"])
def test_a_loss_needs_a_target(batch):
    with pytest.raises(ConfigurationError, match="must yield a target"):
        loss_of(task(), Summed(), batch)


@pytest.mark.parametrize("name", TARGETS)
def test_a_dictionarys_target_has_a_name_that_people_use(name):
    assert target_of({"values": X, name: Y}) is Y


def test_a_batch_without_a_target_is_all_input():
    assert torch.equal(outputs_of(task(), Summed(), X), X.sum(1, keepdim=True))
    assert target_of(X) is None
