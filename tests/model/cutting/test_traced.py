import pytest
import torch
from segmented_models import Encoder, SmallGPT
from torch import nn

import paceline as pl
from paceline.model.cutting.chain import Chain
from paceline.model.cutting.parts import Arguments
from paceline.model.cutting.traced import Traced


def traced(model, *inputs, **named):
    first = next(iter((*inputs, *named.values())))
    return Traced(model, Arguments(inputs, named), len(first))


class Skipping(nn.Module):
    """A value that is used again after two more layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        early = self.a(x)
        return self.c(self.b(early).tanh()) + early


def test_every_place_gives_the_whole_models_outputs():
    model, x = Skipping(), torch.randn(5, 3)
    found = traced(model, x)
    count = len(found.parts)
    for place in range(1, count):
        middle = found.compute(model, 0, place)(Arguments((x,), {}), [])
        made = found.compute(model, place, count)(Arguments((x,), {}), middle)
        torch.testing.assert_close(made, model(x))


def test_a_value_that_is_used_later_crosses_every_cut_until_then():
    found = traced(Skipping(), torch.randn(5, 3))
    # After a, b, tanh, c: `early` alone, then with what was made last.
    assert [part.crossing_bytes for part in found.parts[:4]] == [12, 24, 24, 24]


def test_names_are_those_of_the_layers():
    names = [part.name for part in traced(Skipping(), torch.randn(5, 3)).parts]
    assert names[0] == "a"
    assert "c" in names
    assert traced(Encoder(), torch.randn(3, 5, 8)).parts[-2].name.startswith("head")


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, values, mask=None):
        hidden = self.layer(values)
        return {"logits": self.head(hidden * mask), "hidden": hidden}


def test_arguments_by_name_and_outputs_of_any_structure_are_kept():
    model, values, mask = Dictionary(), torch.randn(5, 3), torch.ones(5, 1)
    found = traced(model, values=values, mask=mask)
    given = Arguments((), {"values": values, "mask": mask})
    middle = found.compute(model, 0, 1)(given, [])
    made = found.compute(model, 1, len(found.parts))(given, middle)
    expected = model(values, mask)
    assert made.keys() == expected.keys()
    torch.testing.assert_close(made["logits"], expected["logits"])
    torch.testing.assert_close(made["hidden"], expected["hidden"])


def test_statistics_of_batch_norm_change_in_the_module_that_is_computed():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.layer(x)).relu()

    model, other, x = Normalised(), Normalised(), torch.randn(5, 3)
    found = traced(model, x)
    assert model.norm.num_batches_tracked == 0
    found.compute(other, 0, len(found.parts))(Arguments((x,), {}), [])
    assert other.norm.num_batches_tracked == 1
    assert model.norm.num_batches_tracked == 0
    assert other.norm.running_mean.abs().sum() > 0


def test_only_segments_that_use_the_inputs_need_them():
    tokens = torch.randint(0, 11, (3, 6))
    found = traced(SmallGPT(), tokens)
    assert found.needs_arguments(0, 3)


def test_batches_of_any_size_pass():
    model = Skipping()
    found = traced(model, torch.randn(5, 3))
    for size in (1, 2, 9):
        x = torch.randn(size, 3)
        made = found.compute(model, 0, len(found.parts))(Arguments((x,), {}), [])
        torch.testing.assert_close(made, model(x))


def test_a_value_of_five_dimensions_does_not_cross_a_cut():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).view(x.shape[0], 2, 2, 2, 1).exp().flatten(1).sum(dim=1)

    parts = traced(Deep(), torch.randn(5, 8)).parts
    assert "5 dimensions" in next(part.obstacle for part in parts if part.obstacle)
    assert not parts[0].obstacle


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_traced_model_counts_as_its_layers_do(device):
    """Including attention, which torch does not count on a CPU."""
    row = pl.models.GPT(2, 16, 2, 4, 10, batch_size=3).model.to_empty(device=device)
    arguments = Arguments((torch.zeros(3, 4, dtype=torch.int64, device=device),), {})
    layers, operations = Chain(row, arguments, 3).parts, Traced(row, arguments, 3).parts
    assert sum(part.flops for part in operations) == sum(part.flops for part in layers)
    if device == "meta":  # a processor's attention leaves its output in another order, which spares a copy
        moved = sum(part.moved_bytes for part in layers)
        assert sum(part.moved_bytes for part in operations) == pytest.approx(moved)
