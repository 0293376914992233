import logging

import torch
from refusals import has, refused
from torch import nn

from paceline.model.cutting.exporting import export
from paceline.model.cutting.parts import Arguments


class OwnChoice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) if x.max() > 0 else x


def test_a_module_whose_own_forward_cannot_be_traced_is_told_so_by_the_error_alone(capfd):
    with refused("model"):
        export(OwnChoice(), Arguments((torch.ones(5, 3),), {}), 5)
    assert capfd.readouterr() == ("", "")


def test_a_dimension_of_size_one_gives_no_warning_of_torch():
    """Sound and grey images have one channel."""
    told = []
    log = logging.getLogger("torch._export.non_strict_utils")
    handler = logging.Handler()
    handler.emit = told.append
    log.addHandler(handler)
    try:
        export(nn.Conv1d(1, 2, 3), Arguments((torch.ones(5, 1, 8),), {}), 5)
    finally:
        log.removeHandler(handler)
    assert not told
    assert not log.disabled


class Sized(nn.Module):
    """Works for one size of batch only."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 3))

    def forward(self, x):
        return x * self.weight


def test_a_module_for_one_size_of_batch_is_refused():
    with refused("model"):
        export(Sized(), Arguments((torch.ones(5, 3),), {}), 5)


def test_a_size_that_is_taken_as_a_plain_number_is_told_with_the_remedy():
    class Measured(nn.Module):
        def forward(self, x):
            return x.reshape(len(x), -1)

    with refused("model", remedy=has("x.shape", 0)):
        export(Measured(), Arguments((torch.ones(5, 3),), {}), 5)


def test_a_view_to_a_constant_batch_size_is_told_with_the_remedy():
    class Constant(nn.Module):
        def forward(self, x):
            return x.view(5, -1)

    with refused("model", remedy=has("x.shape", 0)):
        export(Constant(), Arguments((torch.ones(5, 6),), {}), 5)


def test_constants_are_kept_with_the_trace():
    class Offset(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) + torch.tensor([1.0, 2.0, 3.0])

    model = Offset()
    exported = export(model, Arguments((torch.ones(5, 3),), {}), 5)
    found = [exported.fetcher(model, node)() for node in exported.state]
    assert any(torch.equal(value, torch.tensor([1.0, 2.0, 3.0])) for value in found)
