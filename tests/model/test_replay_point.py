import random

import numpy as np
import torch
from torch import nn

from paceline.model.replay_point import ReplayPoint


def drawn():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_a_pass_that_is_done_again_draws_the_same_and_what_comes_after_is_not_disturbed():
    moment = ReplayPoint(list)
    first = drawn()
    moment.end()
    between = torch.default_generator.get_state()
    with moment.again():
        assert drawn() == first
    assert torch.equal(torch.default_generator.get_state(), between)


def test_statistics_are_changed_by_the_first_pass_only():
    layer = nn.BatchNorm1d(3)
    moment = ReplayPoint(lambda: list(layer.buffers()))
    layer(torch.randn(5, 3))
    moment.end()
    layer(torch.randn(5, 3))  # of another micro-batch
    now = [buffer.clone() for buffer in layer.buffers()]
    with moment.again():
        assert torch.equal(layer.running_mean, torch.zeros(3))
        layer(torch.randn(5, 3))
    assert all(map(torch.equal, layer.buffers(), now))


def test_a_buffer_that_the_pass_did_not_change_is_not_kept():
    mask = torch.ones(4)
    moment = ReplayPoint(lambda: [mask])
    moment.end()
    mask.zero_()
    with moment.again():
        assert not mask.any()


def test_rewinding_undoes_a_pass():
    layer = nn.BatchNorm1d(3)
    moment = ReplayPoint(lambda: list(layer.buffers()))
    first = drawn()
    layer(torch.randn(5, 3))
    moment.rewind()
    assert layer.num_batches_tracked == 0
    assert drawn() == first
