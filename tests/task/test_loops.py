from functools import partial

import pytest
import torch
from gans import a_gan, discriminator, generator
from refusals import has, raised, refused
from tasks import a_task, perceptron, samples, sgd
from torch import nn
from torch.optim.lr_scheduler import StepLR

import paceline as pl
from paceline.errors import TaskError


def a_step(model, batch):
    return model(batch[0]).mean()


def yields(model, batch):
    yield "g", model["g"](batch[0]).mean()


class Yielding:
    def __call__(self, model, batch):
        yield "g", model["g"](batch[0]).mean()


# Several models


def test_several_models_become_one_module_by_name():
    model = a_gan().build_model(0)
    assert isinstance(model, nn.ModuleDict)
    assert list(model) == ["g", "d"]


def test_models_given_as_instances_are_copied_and_what_they_share_stays_shared():
    shared = nn.Linear(2, 2)
    first, second = nn.Sequential(shared, nn.Linear(2, 1)), nn.Sequential(shared)
    model = a_gan(model={"g": first, "d": second}).build_model(0)
    assert model["g"][0] is model["d"][0]
    assert model["g"][0] is not shared


def test_the_seed_sets_every_models_weights():
    one, same, other = (a_gan().build_model(seed)["d"][0].weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["g.x", "", "keys", "training", 3, "two words"])
def test_a_name_that_a_module_dict_cannot_have_is_refused(name):
    with refused("model", name, bound=has("nn.ModuleDict")):
        a_task(model={name: generator})


def test_what_is_no_model_is_refused_by_its_name():
    with refused("model['g']", 3, bound=has("nn.Module")):
        a_task(model={"g": 3})
    with refused("model['g']", 3, bound=has("nn.Module")):
        a_task(model={"g": lambda: 3}).build_model(0)


def test_no_model_at_all_is_refused():
    with refused("model", {}):
        a_task(model={})


# Their optimizers


def test_an_optimizer_of_no_model_is_refused():
    with refused("optimizer", "h"):
        a_gan(optimizer={"g": sgd, "h": sgd})


def test_an_optimizer_of_no_model_is_refused_when_a_factory_has_made_it():
    task = a_gan(model=lambda: nn.ModuleDict({"g": generator(), "c": discriminator()}))
    with refused("optimizer", "d"):
        task.build_model(0)


def test_a_model_that_can_learn_needs_an_optimizer():
    with refused("optimizer", "g", remedy=has("d.0.weight")):
        a_gan(optimizer={"g": sgd}, turns=("g",)).build_model(0)


def test_a_frozen_model_needs_no_optimizer():
    frozen = discriminator().requires_grad_(False)
    assert a_gan(model={"g": generator, "d": frozen}, optimizer={"g": sgd}, turns=("g",)).build_model(0)


def test_children_of_one_module_may_have_optimizers_of_their_own():
    task = a_task(optimizer={"0": sgd, "2": partial(torch.optim.Adam, lr=0.5)})
    model = task.build_model(0)
    made = {name: each.build_optimizer(model) for name, each in task.by_optimizer().items()}
    assert isinstance(made["2"], torch.optim.Adam)
    assert made["0"].param_groups[0]["params"] == list(model[0].parameters())


@pytest.mark.parametrize(
    ("optimizer", "refusal"),
    [
        ({}, refused("optimizer", {})),
        ({"g": 3, "d": sgd}, refused("optimizer['g']", 3)),
        (3, refused("optimizer", 3)),
    ],
)
def test_what_makes_no_optimizer_is_refused(optimizer, refusal):
    with refusal:
        a_gan(optimizer=optimizer)


def test_schedules_have_the_names_of_optimizers():
    schedule = partial(StepLR, step_size=1)
    assert a_gan(schedule={"g": schedule}).by_optimizer()["d"].schedule is None
    assert a_gan(schedule=schedule).by_optimizer()["d"].schedule is schedule
    with refused("schedule", "h"):
        a_gan(schedule={"h": schedule})
    with refused("schedule"):
        a_task(schedule={"g": schedule})


def test_updates_of_a_schedule_are_counted_by_each_models_turns():
    task = a_gan(turns=("d", "d", "g"), schedule_every=12)
    every = {name: each.schedule_every for name, each in task.by_optimizer().items()}
    assert every == {"g": 4, "d": 8}


# The step


def test_a_step_and_a_loss_together_are_refused():
    with refused("loss"):
        a_task(step=a_step)


@pytest.mark.parametrize("step", [lambda model: 0, lambda: 0, lambda model, batch, rate: 0])
def test_a_step_of_other_arguments_is_refused(step):
    with refused("step"):
        a_task(step=step, loss=None)


@pytest.mark.parametrize("step", [3, "step"])
def test_what_cannot_be_called_is_no_step(step):
    with refused("step", step):
        a_task(step=step, loss=None)


def test_an_async_step_is_refused():
    async def step(model, batch):
        return model(batch[0]).mean()

    with refused("step", step):
        a_task(step=step, loss=None)


def test_a_step_may_take_samples_of_one_tensor():
    assert len(a_task(step=a_step, loss=None, data=samples()[:1]).build_data()) == 1


# Turns


@pytest.mark.parametrize("step", [yields, partial(yields), Yielding()])
def test_a_step_that_yields_takes_turns_in_the_order_of_the_optimizers(step):
    assert a_gan(step=step, turns=()).turns == ("g", "d")


def test_turns_may_be_given():
    assert a_gan(turns=["d", "d", "g"]).turns == ("d", "d", "g")


def test_a_step_that_returns_has_no_turns():
    assert a_task(step=a_step, loss=None).turns == ()
    with refused("turns", ("g",)):
        a_task(step=a_step, loss=None, turns=("g",))


def test_turns_are_of_models_with_optimizers_and_leave_none_out():
    with refused("turns", ("d", "g", "h")):
        a_gan(turns=("d", "g", "h"))
    with refused("turns", ("d",)):
        a_gan(turns=("d",))
    with refused("turns", "dg"):
        a_gan(turns="dg")


def test_a_step_that_yields_needs_an_optimizer_for_each_model():
    with refused("optimizer"):
        a_gan(optimizer=sgd)


def test_a_factory_of_models_that_fails_is_named():
    with raised(TaskError, failure=has("model")):
        a_gan(model={"g": lambda: 1 / 0, "d": discriminator}).build_model(0)


# How often


@pytest.mark.parametrize("argument", ["accumulate", "test_batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_counts_below_one_are_refused(argument, value):
    with refused(argument, value, bound=has(1)):
        a_task(**{argument: value})


@pytest.mark.parametrize("ema", [0, 1, 1.5, -0.1, "0.9"])
def test_a_decay_that_is_none_is_refused(ema):
    with refused("ema", ema, bound=has(0, 1)):
        a_task(ema=ema)


@pytest.mark.parametrize("every", ["day", 0, 2.5, True])
def test_a_schedule_is_stepped_at_steps_or_epochs(every):
    with refused("schedule_every", every):
        a_task(schedule_every=every)


def test_predict_must_be_a_function():
    with refused("predict", 3):
        a_task(predict=3)


def test_one_model_in_a_mapping_is_trained_by_one_optimizer():
    task = a_task(
        model={"only": perceptron}, loss=None, step=lambda model, batch: model["only"](batch[0]).mean()
    )
    assert list(task.by_optimizer()) == [""]


def test_what_a_user_has_set_on_a_parameter_is_there_for_the_optimizer():
    model = nn.Linear(3, 1)
    model.bias.decays = False
    built = pl.Task(model=model, data=samples(), loss=nn.functional.mse_loss, optimizer=sgd, batch_size=4)
    made = built.build_model(0)
    assert made.bias is not model.bias
    assert made.bias.decays is False
    assert not hasattr(made.weight, "decays")
