import pytest
import torch
from torch import nn

from paceline.model.gradients import FlatGradient, ignore_bucket
from paceline.model.layout import Layout


def two_layers():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double()


def prepared(module, **options):
    """Return a gradient with content that must not be used, and the module's loss for a fixed input."""
    trainable = list(module.parameters())
    layout = Layout.of(module)
    gradient = FlatGradient(module, trainable, layout, **options)
    gradient.hold(torch.full((layout.length,), 1e9, dtype=layout.dtype))
    return gradient, lambda: module(torch.ones(4, 2, dtype=torch.float64)).square().mean()


def of_torch(module, loss):
    found = torch.autograd.grad(loss(), list(module.parameters()))
    return torch.cat([each.reshape(-1) for each in found])


def test_backward_fills_the_tensor_that_it_holds_times_a_weight():
    module = two_layers()
    gradient, loss = prepared(module)
    gradient.begin(ignore_bucket, None, accumulate=False)
    gradient.begin_part(0.5, is_last=True)
    loss().backward()
    torch.testing.assert_close(gradient.flat, 0.5 * of_torch(module, loss), rtol=0, atol=1e-15)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_last_of_several_parts_hands_over_their_sum():
    module = two_layers()
    gradient, loss = prepared(module)
    ready = []
    gradient.begin(lambda number: ready.append((number, gradient.flat.clone())), None, accumulate=False)
    gradient.begin_parts()
    for weight in (0.25, 0.5):
        assert not ready
        gradient.begin_part(weight, is_last=weight == 0.5)
        loss().backward()
    ((number, handed),) = ready
    assert number == 0
    torch.testing.assert_close(handed, 0.75 * of_torch(module, loss), rtol=0, atol=1e-15)


def test_what_took_no_part_has_a_gradient_of_zero_and_is_handed_over_in_the_end():
    module = two_layers()
    gradient, _ = prepared(module)
    ready = []
    gradient.begin(ready.append, None, accumulate=False)
    gradient.begin_part(1.0, is_last=True)
    module[0](torch.ones(4, 2, dtype=torch.float64)).sum().backward()
    assert ready == []
    gradient.finish_unused()
    assert ready == [0]
    assert gradient.flat[:9].all()
    assert not gradient.flat[9:].any()


def test_a_backward_that_is_abandoned_leaves_no_gradients_on_the_module():
    module = two_layers()
    gradient, loss = prepared(module)

    def give_up():
        raise KeyError

    gradient.begin(ignore_bucket, give_up, accumulate=False)
    gradient.begin_part(1.0, is_last=True)
    with pytest.raises(KeyError):
        loss().backward()
    module[0].weight.grad = torch.ones_like(module[0].weight)
    gradient.abandon()
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(("watches", "calls"), [(True, 2 + 4), (False, 4)])
def test_layers_are_watched_only_where_they_are_not_compiled(watches, calls):
    module = two_layers()
    gradient, loss = prepared(module, watches_layers=watches)
    seen = []
    gradient.begin(ignore_bucket, lambda: seen.append(None), accumulate=False)
    gradient.begin_part(1.0, is_last=True)
    loss().backward()
    assert len(seen) == calls
    gradient.end()
    loss().backward()
    assert len(seen) == calls, "after the computation nobody is asked"


def test_gradients_of_other_dtypes_are_taken_as_the_flat_tensor_has_them():
    module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1).double()])
    gradient, _ = prepared(module)
    gradient.begin(ignore_bucket, None, accumulate=False)
    gradient.begin_part(1.0, is_last=True)
    (module[0](torch.full((1, 2), 3.0)) + module[1](torch.full((1, 2), 5.0).double())).sum().backward()
    assert gradient.flat.tolist() == [3, 3, 1, 5, 5, 1]


def test_what_comes_from_elsewhere_is_added_up_and_the_rest_is_zero():
    module = two_layers()
    gradient, _ = prepared(module)
    for weight in (1.0, 3.0):  # the second batch sees nothing of the first
        gradient.clear()
        for value in (weight, 2 * weight):
            gradient.add(1, torch.full((3,), value, dtype=torch.float64))
        gradient.add(3, torch.full((1,), weight, dtype=torch.float64))
        gradient.check()
        assert gradient.flat.tolist() == [*[0.0] * 6, *[3 * weight] * 3, *[0.0] * 3, weight]
        assert gradient.not_finite is None
