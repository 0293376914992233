from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from refusals import has, refused
from tasks import WORLDS, sgd, simulated
from torch import nn

import paceline as pl
from paceline.task.calls import TARGETS, loss_of, outputs_of, predictions_of, target_of

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
            return {"loss": x.requires_grad_().sum()}

    assert loss_of(task(loss=None), Keyed(), X).item() == X.sum()


class InATuple(nn.Module):
    """Returns (logits, loss), as nanoGPT does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 1))

    def forward(self, x, targets=None):
        outputs = x @ self.weight
        return outputs, None if targets is None else (outputs - targets).square().mean()


def test_a_model_may_return_its_loss_as_the_only_scalar_of_a_tuple():
    assert loss_of(task(loss=None), InATuple(), (X, Y)).item() == EXPECTED


def test_a_tuple_with_two_scalars_does_not_tell_which_is_the_loss():
    class Two(InATuple):
        def forward(self, x, targets):
            outputs, loss = super().forward(x, targets)
            return outputs, loss, loss

    with refused("loss"):
        loss_of(task(loss=None), Two(), (X, Y))


def test_a_loss_that_nobody_computes_is_refused():
    with refused("loss", "Tensor"):
        loss_of(task(loss=None), Summed(), (X, Y))


@pytest.mark.parametrize("batch", [X, (X,), {"values": X}], ids=["tensor", "single", "dictionary"])
def test_a_loss_needs_a_target(batch):
    with refused("data"):
        loss_of(task(), Summed(), batch)


@pytest.mark.parametrize("name", TARGETS)
def test_a_dictionarys_target_has_a_name_that_people_use(name):
    assert target_of({"values": X, name: Y}) is Y


def test_a_batch_without_a_target_is_all_input():
    assert torch.equal(outputs_of(task(), Summed(), X), X.sum(1, keepdim=True))
    assert target_of(X) is None


class Classifier(nn.Module):
    """A model like those of Hugging Face: named arguments, and a dictionary with attributes as output."""

    def __init__(self, **_options):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, input_values, attention_mask=None, labels=None):
        self.given = {"input_values": input_values, "attention_mask": attention_mask, "labels": labels}
        logits = self.head(input_values)
        loss = None if labels is None else nn.functional.mse_loss(logits, labels)
        return ModelOutput(loss=loss, logits=logits)


class Open(Classifier):
    def forward(self, input_values, labels=None, **others):
        self.others = sorted(others)
        return super().forward(input_values, None, labels)


class ModelOutput(OrderedDict):
    def __getattr__(self, name):
        return self[name]


@pytest.mark.parametrize("model", [Classifier, Open])
@pytest.mark.parametrize("name", ["label", "label_ids", "labels"])
def test_a_model_that_takes_labels_gets_the_target_by_that_name(name, model):
    module = model()
    loss = loss_of(task(loss=None), module, {"input_values": X, name: Y})
    assert loss.item() == nn.functional.mse_loss(module.head(X), Y).item()
    assert module.given["labels"] is Y


def test_texts_that_a_model_does_not_take_are_left_out():
    module = Classifier()
    outputs_of(task(loss=None), module, {"text": ["a", "b", "c"], "input_values": X, "labels": Y})
    assert module.given["input_values"] is X


def test_a_tensor_that_a_model_does_not_take_is_refused_by_name():
    with refused("data", "idx, token_type_ids", bound=has("input_values")):
        outputs_of(task(loss=None), Classifier(), {"input_values": X, "idx": X, "token_type_ids": X})


def test_a_model_that_takes_anything_gets_everything():
    module = Open()
    outputs_of(task(loss=None), module, {"input_values": X, "idx": X, "text": ["a"], "label": Y})
    assert module.others == ["idx", "text"]


def test_the_predictions_of_outputs_are_their_logits():
    assert predictions_of(Classifier()(X)).shape == (3, 1)
    assert predictions_of(SimpleNamespace(logits=X)) is X
    assert predictions_of({"logits": X, "loss": 0}) is X
    assert predictions_of(X) is X
    assert predictions_of({"scores": X}) == {"scores": X}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["single", "all-reduce", "async"])
def test_a_model_with_a_loss_of_its_own_and_rows_of_a_dataset_go_in_unchanged(spec, world):
    rows = [
        {"input_values": x, "label": y, "text": str(n)} for n, (x, y) in enumerate(zip(X, Y, strict=True))
    ]
    given = pl.Task(model=Classifier(), data=rows, optimizer=sgd, batch_size=3)
    run = pl.train(given, spec, WORLDS[world](2), steps=3)
    assert len(run.history) == 3
    if spec == "all-reduce":
        expected = pl.train(given, "single", simulated(1), steps=3)
        torch.testing.assert_close(run.parameters, expected.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_a_model_and_a_dataset_of_hugging_face_go_in_unchanged(world):
    transformers, datasets = pytest.importorskip("transformers"), pytest.importorskip("datasets")
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, num_labels=2, **sizes)
    rows = {"text": list("abcdef"), "input_ids": [[n, 1, 2] for n in range(6)], "label": [0, 1] * 3}
    given = pl.Task(
        model=transformers.BertForSequenceClassification(config).eval(),
        data=datasets.Dataset.from_dict(rows).with_format("torch"),
        optimizer=sgd,
        batch_size=6,
    )
    run = pl.train(given, "all-reduce", WORLDS[world](2), steps=2)
    assert run.history[-1].loss == pytest.approx(0.7, abs=0.3)
