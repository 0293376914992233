import warnings

import pytest
import torch
from refusals import has, raised, refused
from tasks import a_task, perceptron, samples
from torch import nn
from torch.nn.utils import weight_norm

from paceline.checking import check_task
from paceline.errors import LossNotFiniteError


def test_it_counts_what_there_is():
    found = check_task(a_task(optimizer=torch.optim.Adam))
    assert (found.parameters, found.trainable, found.samples, found.batch_size) == (37, 37, 24, 8)
    assert found.model_bytes == 37 * 8
    assert found.memory["parameters"] == found.memory["gradients"] == 37 * 8
    assert found.memory["optimizer"] == 2 * 37 * 8, "Adam's two moments"
    assert found.test_samples is None
    assert found.metric is None
    assert found.gradient_s(8) > 0
    assert found.slice_size == 2
    assert found.trainable_here


def test_the_loss_is_that_of_the_untrained_model():
    inputs, targets = samples()
    task = a_task(batch_size=24)
    expected = nn.functional.mse_loss(task.build_model(0)(inputs), targets)
    assert check_task(task).loss == pytest.approx(expected.item(), rel=1e-12)


def test_a_loss_that_is_not_a_number_is_refused():
    def broken(outputs, targets):
        return outputs.sum() * torch.nan

    with raised(LossNotFiniteError, loss=has("nan")):
        check_task(a_task(model=perceptron, loss=broken))


def test_activations_are_what_backward_needs_of_the_workers_slice():
    # Of 8 samples: 4 inputs, and the 2 outputs and 2 targets that the loss keeps.
    def model():
        return nn.Linear(4, 2, bias=False).double()

    inputs_and_errors = 8 * (4 + 2 + 2) * 8
    assert check_task(a_task(model=model), workers=1).memory["activations"] == inputs_and_errors
    assert check_task(a_task(model=model), workers=4).memory["activations"] == inputs_and_errors // 4


def test_batch_norm_on_single_samples_is_told_and_not_raised():
    def normed():
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()

    found = check_task(a_task(model=normed), workers=8)
    assert "all-reduce" in found.trials.failures
    assert not found.trainable_here
    assert any("more than 1 value per channel" in finding.why for finding in found.findings)


@pytest.mark.parametrize("workers", [0, -1, "4", 10**7])
def test_workers_that_cannot_be_are_refused(workers):
    with refused("workers", workers):
        check_task(a_task(), workers=workers)


def test_a_model_too_large_for_copies_is_not_tried(monkeypatch):
    monkeypatch.setattr("paceline.checking.check.available_bytes", lambda: 1000)
    found = check_task(a_task())
    assert (found.trials.works, found.trials.failures) == ((), {})
    assert "all-reduce" in found.trials.untried


def test_a_model_that_cannot_be_copied_is_checked_as_any_other():
    """Torch's older weight_norm stores a computed tensor, which cannot be copied."""

    def model():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return nn.Sequential(weight_norm(nn.Linear(4, 5).double()), nn.Linear(5, 2).double())

    found = check_task(a_task(model=model))
    assert found.trainable_here
    for reason in found.trials.failures.values():
        assert reason.startswith("model must be ")
        assert "weight_norm" in reason
    assert set(found.trials.failures) == {"layers", "pipeline", "tensor", "hybrid"}
