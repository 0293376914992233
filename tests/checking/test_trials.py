import threading

import pytest
import torch
from tasks import a_task, samples
from torch import nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.checking.trials import Trials, fails_to_travel, try_strategies
from paceline.model.portable import copier
from paceline.strategies import STRATEGIES


def tried(task, workers=4, **options):
    make = copier(task.model, task.build_model(0))
    return try_strategies(task, make, task.build_data(), workers=workers, seed=0, **options)


def test_every_strategy_trains_a_plain_task():
    names = []
    trials = tried(a_task(), progress=names.append)
    assert names == list(trials.works)
    assert set(names) == set(STRATEGIES)
    assert (trials.failures, trials.untried, trials.findings()) == ({}, (), [])


def test_a_strategy_that_refuses_is_told_with_its_own_reason():
    trials = tried(a_task(), workers=9)
    (finding,) = trials.findings()
    assert finding.strategies == "hogwild"
    with pytest.raises(pl.PacelineError) as refusal:
        pl.train(a_task(), "hogwild", pl.Simulated(workers=9, link="shared-memory"), steps=1)
    assert finding.why == str(refusal.value)


def test_strategies_that_fail_for_one_reason_are_told_together():
    def normed():
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).double()

    first, *_ = tried(a_task(model=normed, batch_size=4)).findings()
    assert first.strategies.startswith("map-reduce, all-reduce, sync")
    assert "Expected more than 1 value per channel" in first.why


def test_a_last_batch_that_is_too_small_is_found():
    """17 samples in batches of 8: the last of an epoch has a single one, and BatchNorm fails on it."""

    def normed():
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).double()

    data = tuple(part[:17] for part in samples())
    trials = tried(a_task(model=normed, data=data), workers=2)
    assert "Expected more than 1 value per channel" in trials.failures["all-reduce"]


def test_clients_have_a_sample_each_though_there_are_more_of_them_than_in_two_batches():
    data = tuple(torch.cat([part, part]) for part in samples())
    assert "fedavg" in tried(a_task(batch_size=2, data=data), workers=20).works


class Numbered(Dataset):
    def __init__(self):
        self.inputs, self.targets = samples()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        return self.inputs[number], self.targets[number]


def test_a_dataset_is_tried_as_tensors_are():
    assert set(tried(a_task(data=Numbered())).works) == set(STRATEGIES)


def test_what_there_is_no_time_for_is_named():
    trials = tried(a_task(), longest_s=0.0)
    assert set(trials.untried) == set(STRATEGIES)
    assert (trials.works, trials.remaining_s) == ((), None)


def test_the_cheapest_strategies_are_tried_first_and_the_time_of_the_others_is_estimated(monkeypatch):
    """With a clock on which each trial takes a second."""
    clock = iter(range(1000))
    monkeypatch.setattr("paceline.checking.trials.train", lambda *_, **__: None)
    monkeypatch.setattr("paceline.checking.trials.time.monotonic", lambda: next(clock))
    trials = tried(a_task(), longest_s=9.0)
    assert trials.works[0] == "single"
    assert not {"pipeline", "tensor", "zero", "hybrid", "layers"} & {*trials.works}, "their model is traced"
    assert set(trials.works) | set(trials.untried) == set(STRATEGIES)
    assert trials.remaining_s > len(trials.untried) / 2


def test_reasons_that_differ_in_numbers_or_in_the_strategys_name_are_one_finding():
    failures = {
        "sync": "sync: rank 0 got 4 samples",
        "async": "async: rank 3 got 16 samples",
        "ssp": "another",
    }
    found = Trials(failures, (), ()).findings()
    assert [(each.strategies, each.why) for each in found] == [
        ("sync, async", "sync: rank 0 got 4 samples"),
        ("ssp", "another"),
    ]


def test_a_task_that_cannot_be_pickled_stays_here():
    lock = threading.Lock()

    def data():
        with lock:
            return samples()

    assert fails_to_travel(a_task()) is None
    assert "cannot pickle '_thread.lock' object" in fails_to_travel(a_task(data=data)).why
