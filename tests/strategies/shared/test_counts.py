"""Integer counters that a strategy saves in checkpoints."""

from types import SimpleNamespace

import torch

from paceline.strategies.shared.counts import Counts


def test_numbers_are_there_again_in_the_next_program():
    states = {}
    model = SimpleNamespace(state=lambda name, like: states.setdefault(name, like.clone()))
    ctx = SimpleNamespace(model=model)
    counts = Counts(ctx, "samples", 2)
    assert list(counts.values) == [0, 0]
    counts.values[1] = 2**40
    assert list(Counts(ctx, "samples", 2).values) == [0, 2**40]
    assert states["samples"].dtype == torch.int64
