"""Cross entropy of parts of the classes."""

import itertools

import pytest
import torch
from refusals import raised
from torch.nn import functional

from paceline.model.tensor_parallel.entropy import cross_entropy, entropy_sums, highest

CLASSES = 12
PARTS = [(0, 5), (5, 4), (9, 3)]
WEIGHT = torch.linspace(0.1, 2, CLASSES, dtype=torch.float64)
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def in_parts(values, target, weight, reduction, ignored, smoothing):
    dim = min(1, values.dim() - 1)
    parts = [(values.narrow(dim, *part), part) for part in PARTS]
    most = torch.stack([highest(each, dim) for each, _ in parts]).amax(0)
    sums = sum(
        entropy_sums(each, most, target, weight, smoothing, dim, 1, CLASSES, *part) for each, part in parts
    )
    return cross_entropy(sums, target, weight, REDUCTIONS[reduction], ignored, smoothing, CLASSES)


@pytest.mark.parametrize("shape", [(7, CLASSES), (3, CLASSES, 4), (CLASSES,)], ids=str)
def test_parts_give_torchs_own_loss_and_gradient(shape):
    generator = torch.Generator().manual_seed(1)
    cases = itertools.product(REDUCTIONS, (0.0, 0.1), (None, WEIGHT), (-100, 3))
    for reduction, smoothing, weight, ignored in cases:
        values = 30 * torch.randn(shape, dtype=torch.float64, generator=generator)
        values.requires_grad_()
        samples = [size for d, size in enumerate(shape) if d != min(1, len(shape) - 1)]
        target = torch.randint(4, CLASSES, samples, generator=generator)
        target.view(-1)[:-1:2] = 3
        expected = functional.cross_entropy(
            values, target, weight, reduction=reduction, ignore_index=ignored, label_smoothing=smoothing
        )
        found = in_parts(values, target, weight, reduction, ignored, smoothing)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        gradients = [torch.autograd.grad(each.sum(), values)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


def test_a_batch_of_which_every_sample_is_ignored_has_no_mean():
    values, target = torch.randn(2, CLASSES), torch.full((2,), -100)
    assert in_parts(values, target, None, "mean", -100, 0.0).isnan()


def test_narrow_numbers_are_summed_in_32_bits():
    values = torch.randn(4, CLASSES, dtype=torch.bfloat16)
    target = torch.arange(4)
    found = in_parts(values, target, None, "mean", -100, 0.0)
    expected = functional.cross_entropy(values.float(), target)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_target_that_is_no_class_is_refused():
    with raised(RuntimeError, 0, 11):
        in_parts(torch.randn(2, CLASSES), torch.tensor([0, CLASSES]), None, "mean", -100, 0.0)
