import pytest
import torch
from tasks import a_task, perceptron, samples
from torch import nn

from paceline.fingerprint import differences, fingerprint


def taken(**changes):
    task = a_task(**changes)
    return fingerprint(task, task.build_model(0), samples=24, test_samples=6)


def test_one_task_has_one_fingerprint():
    assert taken() == taken()
    assert taken() == {
        "model": taken()["model"],
        "batch size": "8",
        "loss": "mse_loss",
        "metric": "none",
        "target": "none",
        "samples": "24",
        "test samples": "6",
    }


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("model", {"model": lambda: nn.Linear(4, 2).double()}),
        ("model", {"model": lambda: perceptron().float()}),
        ("model", {"model": lambda: nn.Sequential(*reversed(perceptron()))}),
        ("batch size", {"batch_size": 4}),
        ("loss", {"loss": nn.functional.l1_loss}),
        ("metric", {"metric": "mae", "test": samples()}),
        ("target", {"metric": "mae", "test": samples(), "target": 0.5}),
    ],
)
def test_another_task_has_another(key, change):
    assert taken(**change)[key] != taken()[key]


def test_optimizer_and_seed_are_no_part_of_it():
    other = taken(optimizer=lambda params: torch.optim.Adam(params, lr=1e-3))
    assert other == taken()


def test_what_is_not_known_is_left_out():
    task = a_task()
    found = fingerprint(task, task.build_model(0), samples=0, test_samples=0)
    assert not {"samples", "test samples"} & {*found}


def test_differences_are_told_with_the_names_that_have_them():
    prints = {
        "sync": [{"samples": "512", "loss": "mse"}, {"samples": "512"}],
        "async": [{"samples": "1,024", "loss": "mse"}],
        "old": [{}],
    }
    assert differences(prints) == ["samples 512 (sync) and 1,024 (async)"]
    assert differences({"sync": prints["sync"], "old": [{}]}) == []


def test_many_names_are_not_all_listed():
    prints = {str(name): [{"samples": "1"}] for name in range(7)} | {"other": [{"samples": "2"}]}
    assert differences(prints) == ["samples 1 (0, 1, 2, 3 and 3 more) and 2 (other)"]
