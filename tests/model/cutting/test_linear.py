import pytest
import torch
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.model.cutting.exporting import export
from paceline.model.cutting.parts import Arguments


class Transposing(nn.Module):
    """Linear layers as Falcon computes them."""

    def __init__(self, transposed=lambda weight: weight.T):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2, bias=False)
        self.transposed = transposed

    def forward(self, x):
        return torch.tanh(self.first(x)) @ self.transposed(self.second.weight)


FORMS = [
    lambda w: w.T,
    lambda w: w.t(),
    lambda w: w.mT,
    lambda w: w.transpose(-1, -2),
    lambda w: w.permute(1, 0),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_a_product_with_a_transposed_weight_is_a_linear_layer(form):
    exported = export(Transposing(FORMS[form]), Arguments((torch.ones(5, 4),), {}), 5)
    kinds = [node.target for node in exported.nodes]
    assert kinds == [
        torch.ops.aten.linear.default,
        torch.ops.aten.tanh.default,
        torch.ops.aten.linear.default,
    ]


def test_other_products_stay():
    class Gram(nn.Module):
        def forward(self, x):
            return x @ x.T

    exported = export(Gram(), Arguments((torch.ones(5, 4),), {}), 5)
    assert torch.ops.aten.linear.default not in [node.target for node in exported.nodes]


def test_tensor_parallelism_splits_it():
    task = a_task(model=lambda: Transposing().double())
    expected = pl.train(task, "single", simulated(1), steps=2).parameters
    run = pl.train(task, "tensor", simulated(2), steps=2)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
