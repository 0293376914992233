import pytest
import torch
from tasks import a_task, perceptron, samples
from torch import nn

from paceline.task.fingerprint import changes, differences, fingerprint, layers, settings


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


def set_up(**options):
    task = a_task(**options)
    return settings(task, task.build_model(0))


def many_groups(params):
    return torch.optim.SGD([{"params": [each], "lr": 0.1 * number} for number, each in enumerate(params, 1)])


def test_one_task_has_one_set_of_settings():
    given = {
        "schedule": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20),
        "optimizer": many_groups,
    }
    assert set_up(**given) == set_up(**given)


def test_a_schedule_is_known_by_its_rates():
    decay = torch.optim.lr_scheduler.ExponentialLR
    found = set_up(schedule=lambda optimizer: decay(optimizer, 0.5))["schedule"]
    assert found.startswith("ExponentialLR with rates 0.1 0.05 0.025 ")
    same = set_up(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))["schedule"]
    assert same.split(" with ")[1] == found.split(" with ")[1]


def test_a_layer_is_known_by_its_class_and_its_visible_arguments():
    found = layers(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.25)))
    assert found["1"] == "Dropout(p=0.25, inplace=False)"

    class Odd(nn.Module):
        def extra_repr(self):
            return f"{object()}"

    assert layers(Odd()) == layers(Odd())


def test_changes_say_what_was_and_what_is():
    before, now = {"seed": "0", "ema": "none", "old": "1"}, {"seed": "1", "ema": "none", "new": "2"}
    assert changes(before, now) == ["seed was 0 and is 1 now"]
