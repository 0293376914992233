from functools import partial

import pytest
import torch
from gans import a_gan, discriminator, generator
from tasks import a_task, perceptron, samples, sgd
from torch import nn
from torch.optim.lr_scheduler import StepLR

from paceline.errors import ConfigurationError, TaskError


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
    with pytest.raises(ConfigurationError, match="names that are free in an nn.ModuleDict"):
        a_task(model={name: generator})


def test_what_is_no_model_is_refused_by_its_name():
    with pytest.raises(
        ConfigurationError, match=r"model\['g'\] must be an nn\.Module or make one, but got 3"
    ):
        a_task(model={"g": 3})
    with pytest.raises(ConfigurationError, match=r"model\['g'\] must make an nn\.Module, but got 3"):
        a_task(model={"g": lambda: 3}).build_model(0)


def test_no_model_at_all_is_refused():
    with pytest.raises(ConfigurationError, match="model must name at least one model"):
        a_task(model={})


# Their optimizers


def test_an_optimizer_of_no_model_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"optimizer must have names of the models, but got 'h'.*g, d"
    ):
        a_gan(optimizer={"g": sgd, "h": sgd})


def test_an_optimizer_of_no_model_is_refused_when_a_factory_has_made_it():
    task = a_gan(model=lambda: nn.ModuleDict({"g": generator(), "c": discriminator()}))
    with pytest.raises(ConfigurationError, match="optimizer must have names of the models, but got 'd'"):
        task.build_model(0)


def test_a_model_that_can_learn_needs_an_optimizer():
    with pytest.raises(ConfigurationError, match=r"one for each model that can learn.*d\.0\.weight has none"):
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


@pytest.mark.parametrize("optimizer", [{}, {"g": 3, "d": sgd}, 3])
def test_what_makes_no_optimizer_is_refused(optimizer):
    with pytest.raises(ConfigurationError, match="optimizer"):
        a_gan(optimizer=optimizer)


def test_schedules_have_the_names_of_optimizers():
    schedule = partial(StepLR, step_size=1)
    assert a_gan(schedule={"g": schedule}).by_optimizer()["d"].schedule is None
    assert a_gan(schedule=schedule).by_optimizer()["d"].schedule is schedule
    with pytest.raises(ConfigurationError, match="schedule must have names of the optimizers, but got 'h'"):
        a_gan(schedule={"h": schedule})
    with pytest.raises(ConfigurationError, match="schedule must have the names of the optimizers"):
        a_task(schedule={"g": schedule})


def test_updates_of_a_schedule_are_counted_by_each_models_turns():
    task = a_gan(turns=("d", "d", "g"), schedule_every=12)
    every = {name: each.schedule_every for name, each in task.by_optimizer().items()}
    assert every == {"g": 4, "d": 8}


# The step


def test_a_step_and_a_loss_together_are_refused():
    with pytest.raises(ConfigurationError, match="loss must not be given together with step"):
        a_task(step=a_step)


@pytest.mark.parametrize("step", [lambda model: 0, lambda: 0, lambda model, batch, rate: 0])
def test_a_step_of_other_arguments_is_refused(step):
    with pytest.raises(
        ConfigurationError, match=r"step must take the model and a batch, but got '<lambda>\("
    ):
        a_task(step=step, loss=None)


@pytest.mark.parametrize("step", [3, "step"])
def test_what_cannot_be_called_is_no_step(step):
    with pytest.raises(ConfigurationError, match="step must be a function of the model and a batch"):
        a_task(step=step, loss=None)


def test_an_async_step_is_refused():
    async def step(model, batch):
        return model(batch[0]).mean()

    with pytest.raises(ConfigurationError, match="step must not be async"):
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
    with pytest.raises(ConfigurationError, match="turns must not be given unless the step is a generator"):
        a_task(step=a_step, loss=None, turns=("g",))


def test_turns_are_of_models_with_optimizers_and_leave_none_out():
    with pytest.raises(ConfigurationError, match="turns must be names of the optimizers"):
        a_gan(turns=("d", "g", "h"))
    with pytest.raises(ConfigurationError, match="turns must give g a turn too"):
        a_gan(turns=("d",))
    with pytest.raises(ConfigurationError, match="turns must be a sequence of names"):
        a_gan(turns="dg")


def test_a_step_that_yields_needs_an_optimizer_for_each_model():
    with pytest.raises(ConfigurationError, match="optimizer must be named, one for each model"):
        a_gan(optimizer=sgd)


def test_a_factory_of_models_that_fails_is_named():
    with pytest.raises(TaskError, match="the model could not be built"):
        a_gan(model={"g": lambda: 1 / 0, "d": discriminator}).build_model(0)


# How often


@pytest.mark.parametrize("argument", ["accumulate", "test_batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_counts_below_one_are_refused(argument, value):
    with pytest.raises(ConfigurationError, match=f"{argument} must be a whole number of at least 1"):
        a_task(**{argument: value})


@pytest.mark.parametrize("ema", [0, 1, 1.5, -0.1, "0.9"])
def test_a_decay_that_is_none_is_refused(ema):
    with pytest.raises(ConfigurationError, match="ema must be above 0 and below 1"):
        a_task(ema=ema)


@pytest.mark.parametrize("every", ["day", 0, 2.5, True])
def test_a_schedule_is_stepped_at_steps_or_epochs(every):
    with pytest.raises(ConfigurationError, match="schedule_every must be"):
        a_task(schedule_every=every)


def test_predict_must_be_a_function():
    with pytest.raises(ConfigurationError, match="predict must be a function of the model and a batch"):
        a_task(predict=3)


def test_one_model_in_a_mapping_is_trained_by_one_optimizer():
    task = a_task(
        model={"only": perceptron}, loss=None, step=lambda model, batch: model["only"](batch[0]).mean()
    )
    assert list(task.by_optimizer()) == [""]
