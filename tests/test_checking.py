import pytest
import torch
from tasks import a_task, perceptron, samples
from torch import nn

from paceline.checking import check_task
from paceline.errors import PacelineError


def findings(**changes):
    workers = changes.pop("workers", 4)
    return " | ".join(
        f"{one.strategies}: {one.why}" for one in check_task(a_task(**changes), workers=workers).findings
    )


def test_it_counts_what_there_is():
    found = check_task(a_task(optimizer=torch.optim.Adam))
    assert (found.parameters, found.trainable, found.samples, found.batch_size) == (37, 37, 24, 8)
    assert found.model_bytes == 37 * 8
    assert found.peak_bytes == 4 * 37 * 8, "parameters, gradients, and Adam's two moments"
    assert found.test_samples is None
    assert found.metric is None
    assert found.gradient_s(8) > 0
    assert found.findings == ()


def test_the_loss_is_that_of_the_untrained_model():
    inputs, targets = samples()
    task = a_task(batch_size=24)
    expected = nn.functional.mse_loss(task.build_model(0)(inputs), targets)
    assert check_task(task).loss == pytest.approx(expected.item(), rel=1e-12)


def test_a_batch_that_is_too_small_for_the_workers_is_named():
    assert "hogwild" in findings(workers=9)
    assert findings(workers=8) == ""


def test_batch_norm_is_named_and_what_it_cannot_do():
    def normed():
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()

    assert "fails on a slice of one sample: 5 workers share a batch of 8" in findings(model=normed, workers=5)
    found = findings(model=normed, workers=2)
    assert "it sees its worker's slice alone" in found
    assert "fails" not in found


def test_clipping_by_each_worker_is_named():
    assert "clips its own gradient" in findings(clip_norm=1.0)


def test_a_loss_that_is_not_a_number_is_refused():
    def broken(outputs, targets):
        return outputs.sum() * torch.nan

    with pytest.raises(PacelineError, match="nan"):
        check_task(a_task(model=perceptron, loss=broken))
