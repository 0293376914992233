from dataclasses import dataclass

import pytest
import torch
from tasks import a_task, numbers, simulated
from torch import Tensor, nn
from torch.nn.modules import transformer

import paceline as pl
from paceline.model.cutting.adapting import adapted


@dataclass
class Prediction:
    value: Tensor
    hidden: Tensor


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = torch.relu(self.into(x))
        return Prediction(self.out(hidden), hidden)


class Masked(nn.Module):
    """torch's own decoder compares its mask with a causal one."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerDecoder(layer, 2), nn.Linear(4, 2)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.body(x, x, tgt_mask=mask, memory_key_padding_mask=x[..., 0] > 9)).mean(1)


def assert_equals_single(task):
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    for spec in ("pipeline:microbatches=2", "tensor"):
        run = pl.train(task, spec, simulated(2), steps=2)
        torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_a_model_may_return_a_dataclass():
    assert_equals_single(
        a_task(
            model=lambda: Predictor().double(),
            data=(numbers(24, 4), numbers(24, 2, seed=1)),
            loss=lambda made, target: nn.functional.mse_loss(made.value, target),
        )
    )


def test_a_transformer_may_look_at_its_mask():
    assert_equals_single(
        a_task(model=lambda: Masked().double(), data=(numbers(24, 5, 4), numbers(24, 2, seed=1)))
    )


def test_torch_and_the_model_are_as_before_afterwards():
    model, detect = Predictor(), transformer._detect_is_causal_mask
    with adapted(model, ()):
        assert transformer._detect_is_causal_mask is not detect
    assert transformer._detect_is_causal_mask is detect
    assert not model._forward_hooks


class Averaged(nn.Module):
    """BatchNorm with the mean statistics of all batches."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8, momentum=None)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.into(x))))


@pytest.mark.parametrize("spec", ["layers", "tensor"])
def test_batch_norm_may_average_its_statistics_over_all_batches(spec):
    task = a_task(model=lambda: Averaged().double())
    expected = pl.train(task, "single", simulated(1), steps=3)
    run = pl.train(task, spec, simulated(2), steps=3)
    for name, value in expected.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], value, rtol=0, atol=1e-12)
