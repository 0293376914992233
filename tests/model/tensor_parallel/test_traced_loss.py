"""The task's loss after a model with split outputs."""

import logging

import pytest
import torch
from by_hand import compute_whole
from conformance.cases import one_in
from segmented_models import gpt_task
from tensor_by_hand import compute_in_parts, cut_in
from tensor_models import language_task
from torch import nn
from torch.nn import functional

from paceline.model.tensor_parallel import planning

CLASSES = 12
WEIGHT = torch.linspace(0.1, 2, CLASSES, dtype=torch.float64)
PLAN = {"tokens": "vocabulary", "head": "column"}


def as_nanogpt_writes_it(outputs, target):
    batch, length, classes = outputs.shape
    flat = outputs.view(batch * length, classes)
    return functional.cross_entropy(flat, target.view(batch * length), ignore_index=3)


def weighted_by_hand(outputs, target):
    losses = functional.cross_entropy(outputs.transpose(1, 2), target, reduction="none")
    return (losses * (target != 2)).sum() / 8


def shifted(outputs, target):
    return functional.cross_entropy(outputs[:, :-1].reshape(-1, CLASSES), target[:, 1:].reshape(-1))


def in_two(outputs, target):
    logarithms = functional.log_softmax(outputs / 2, dim=-1)
    return functional.nll_loss(logarithms.flatten(0, 1), target.flatten(), weight=WEIGHT)


class OfPlaces(nn.CrossEntropyLoss):
    def forward(self, outputs, target):
        return super().forward(outputs.transpose(1, 2), target)


FOLLOWED = {
    "nanogpt": as_nanogpt_writes_it,
    "weighted by hand": weighted_by_hand,
    "shifted": shifted,
    "in two": in_two,
    "a module": OfPlaces(weight=WEIGHT, label_smoothing=0.1),
}


@pytest.mark.parametrize(
    ("kind", "tied"), one_in(4, [(kind, tied) for kind in FOLLOWED for tied in (False, True)])
)
def test_a_loss_of_parts_gives_the_gradients_of_the_whole(kind, tied):
    task = language_task(tied=tied, tensor_plan=PLAN, loss=FOLLOWED[kind])
    check(task, has_loss=True)


def check(task, *, has_loss):
    loss, gradients, _ = compute_whole(task)
    found_loss, cut, found = compute_in_parts(task, 3)
    assert cut.has_loss == has_loss
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for position, each in enumerate(found):
        for name, part in each.items():
            expected = cut.at(position).part(name, gradients[name])
            torch.testing.assert_close(part, expected, rtol=0, atol=1e-13, msg=f"{name} {position}")


def of_probabilities(outputs, target):
    return functional.cross_entropy(outputs.transpose(1, 2), functional.one_hot(target, CLASSES).mT.double())


def that_looks_at_values(outputs, target):
    loss = functional.cross_entropy(outputs.flatten(0, 1), target.flatten())
    return loss if loss.item() > 0 else loss * 2


def with_another_term(outputs, target):
    return shifted(outputs, target) + 1e-3 * outputs.logsumexp(-1).square().mean()


PUT_TOGETHER = {
    "its targets are probabilities": of_probabilities,
    "loss must be one that can be traced": that_looks_at_values,
    "no rule for logsumexp": with_another_term,
}


@pytest.mark.parametrize("reason", PUT_TOGETHER)
def test_outputs_are_put_together_for_any_other_loss_and_the_reason_is_told(reason, caplog):
    with caplog.at_level(logging.INFO, logger="paceline"):
        check(language_task(tensor_plan=PLAN, loss=PUT_TOGETHER[reason]), has_loss=False)
    assert reason in caplog.text


class WithItsOwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)

    def forward(self, tokens, labels):
        logits = self.head(self.tokens(tokens))
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_outputs_of_a_model_with_a_loss_of_its_own_are_not_put_together_either():
    tokens = torch.arange(24 * 6).view(24, 6) % CLASSES
    data = [{"tokens": each, "labels": each.roll(1)} for each in tokens]
    task = language_task(
        model=lambda: WithItsOwnLoss().double(), data=data, loss=None, tensor_plan={"head": "column"}
    )
    check(task, has_loss=True)


def test_what_ranks_make_one_of_has_two_numbers_for_each_token_or_one():
    segments = cut_in(language_task(tensor_plan={"head": "column"}), 2).segments
    sizes = {each.how: segment.values_out[each.place] for segment in segments for each in segment.reductions}
    length, nbytes = 6, 8
    assert sizes == {"max": length * nbytes, "sum": 2 * length * nbytes}


def test_a_head_of_few_classes_is_left_whole():
    cut = cut_in(gpt_task(), 2)
    assert not cut.has_loss
    assert "tokens.weight" not in cut.shares.of


def test_a_head_of_many_classes_is_split_with_the_embedding_that_it_is_tied_to(monkeypatch):
    monkeypatch.setattr(planning, "_MANY_CLASSES", 11)
    task = gpt_task()
    cut = cut_in(task, 2)
    assert cut.has_loss
    assert cut.shares.of["tokens.weight"].length == 11
    assert len([name for name in cut.shares.of if name.endswith("weight")]) == 3 * 4 + 1


def test_a_lone_layer_of_classes_is_a_head():
    task = language_task(
        model=lambda: nn.Sequential(nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)).double()
    )
    check(task, has_loss=True)
