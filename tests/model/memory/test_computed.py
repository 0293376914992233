"""The entries of a replica in its rank's ledger."""

import numpy as np
import torch
from tasks import a_task
from torch import nn

from paceline.context import Batch
from paceline.data.samples import Samples
from paceline.model.memory import Ledger
from paceline.model.replica import Replica


def replica_of(task):
    replica, ledger = Replica.of(task, task.build_model(0)), Ledger()
    replica.attach(ledger, lambda: None)
    replica.build()
    return replica, ledger


def compute(replica, task, count=4):
    replica.compute(Batch(0, 0, count, count, lambda _: np.arange(count)), Samples.of(task))


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def linear(width=16):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)).double()


def test_parameters_gradients_and_an_adam_take_four_times_the_parameters():
    task = a_task(model=linear, optimizer=adam)
    replica, ledger = replica_of(task)
    own = replica.parameters.nbytes
    assert (ledger.now["parameters"], ledger.now["gradients"]) == (own, own)
    assert ledger.now["optimizer"] == 0
    compute(replica, task)
    replica.apply()
    assert ledger.now["optimizer"] == 2 * own
    assert ledger.now["total"] == 4 * own


def test_a_shard_counts_only_what_its_own_optimizer_remembers():
    task = a_task(model=linear, optimizer=adam)
    replica, ledger = replica_of(task)
    first, _, _, _ = replica.shards(4)
    compute(replica, task)
    replica.apply(first)
    assert ledger.now["optimizer"] == 2 * 8 * (first.stop - first.start)


def test_activations_are_there_from_forward_to_backward_only():
    task = a_task(model=linear)
    replica, ledger = replica_of(task)
    compute(replica, task)
    assert ledger.now["activations"] == 0
    at_least = 8 * (4 * 4 + 4 * 16)  # what the two linear layers are given
    assert ledger.peak["activations"] >= at_least


def test_a_batch_in_parts_has_the_activations_of_one_part():
    peaks = []
    for parts in (1, 4):
        task = a_task(model=linear, accumulate=parts)
        replica, ledger = replica_of(task)
        compute(replica, task, count=8)
        peaks.append(ledger.peak["activations"])
    assert peaks[0] == 4 * peaks[1]


def test_a_frozen_parameter_counts_but_has_no_gradient():
    def model():
        built = linear()
        built[0].requires_grad_(False)
        return built

    replica, ledger = replica_of(a_task(model=model))
    frozen = sum(p.nbytes for p in replica.module[0].parameters())
    assert ledger.now["parameters"] == replica.parameters.nbytes + frozen
    assert ledger.now["gradients"] == replica.gradient.nbytes == replica.parameters.nbytes


def test_a_narrow_parameter_takes_the_memory_of_both():
    def model():
        return nn.Sequential(nn.Linear(4, 8).to(torch.bfloat16), nn.Linear(8, 2))

    replica, ledger = replica_of(a_task(model=model))
    narrow = sum(p.nbytes for p in replica.module[0].parameters())
    assert ledger.now["parameters"] == replica.parameters.nbytes + narrow


def test_released_parameters_take_no_memory():
    replica, ledger = replica_of(a_task(model=linear))
    held = ledger.now["parameters"]
    replica.release()
    assert ledger.now["parameters"] == 0
    replica.reclaim()
    assert ledger.now["parameters"] == held


def test_an_optimizer_that_begins_anew_remembers_nothing():
    task = a_task(model=linear, optimizer=adam)
    replica, ledger = replica_of(task)
    for _ in range(2):
        compute(replica, task)
        replica.apply()
        assert ledger.now["optimizer"] == 2 * replica.parameters.nbytes
        replica.reset_optimizer()
        assert ledger.now["optimizer"] == 0


def test_a_model_that_differentiates_by_torch_func_is_computed_all_the_same():
    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2).double()
            self.norm = nn.BatchNorm1d(2).double()

        def forward(self, x):
            slope = torch.func.grad(lambda each: each.sin().sum())(x)
            return self.norm(self.layer(x + slope))

    task = a_task(model=Slope)
    replica, _ = replica_of(task)
    compute(replica, task)
    assert replica.gradient.abs().sum() > 0
    assert replica.module.norm.num_batches_tracked == 1
