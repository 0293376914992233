import dataclasses
import pickle
import secrets
import warnings

import pytest
import torch
from gans import a_gan, discriminator
from refusals import has, raised
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

import paceline as pl
from paceline.errors import TaskError
from paceline.model.portable import Rebuilt, copier, portable
from paceline.testing.checks import check_close
from paceline.testing.reference import STEPS, train_plainly
from paceline.testing.tasks import make_task
from paceline.testing.worlds import WORLDS, simulated


def with_weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)).double()


def with_spectral_norm():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)).double()


def with_hooked_weight_norm():
    """Torch's method before parametrizations. Such a module cannot even be copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(weight_norm(nn.Linear(4, 5).double()), nn.Tanh(), nn.Linear(5, 2).double())


HARD_TO_SEND = [with_weight_norm, with_spectral_norm, with_hooked_weight_norm]


def test_a_module_that_can_be_copied_travels_itself():
    module = nn.Linear(2, 2)
    assert portable(lambda: nn.Linear(2, 2), module) is module


def test_a_module_that_was_given_built_travels_itself():
    module = with_weight_norm()
    assert portable(module, module) is module


@pytest.mark.parametrize("factory", HARD_TO_SEND)
def test_what_cannot_be_copied_is_made_anew_with_the_same_state(factory):
    module = factory()
    sent = portable(factory, module)
    assert isinstance(sent, Rebuilt)
    again = sent()
    assert again is not module
    state = again.state_dict()
    assert state.keys() == module.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())


def test_what_travels_does_not_change_when_the_module_does():
    module = with_weight_norm()
    sent = pickle.loads(pickle.dumps(portable(with_weight_norm, module)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in sent().state_dict().items())


def test_of_several_models_one_may_be_hard_to_send():
    task = a_gan(
        model={"g": lambda: parametrizations.weight_norm(nn.Linear(3, 2).double()), "d": discriminator()}
    )
    local, virtual = (pl.train(task, "all-reduce", world(2), steps=STEPS) for world in WORLDS.values())
    assert torch.equal(local.parameters, virtual.parameters)


def test_copies_are_of_the_module_as_it_was():
    for factory in (*HARD_TO_SEND, lambda: nn.Linear(2, 2)):
        module = factory()
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        make = copier(factory, module)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        assert all(torch.equal(tensor, before[name]) for name, tensor in make().state_dict().items())
        assert make() is not make()


def test_a_model_of_shapes_alone_is_not_built_again():
    with torch.device("meta"):
        module = with_weight_norm()
    assert portable(with_weight_norm, module) is module


@pytest.mark.parametrize("factory", HARD_TO_SEND)
def test_parametrized_models_get_the_weights_of_a_plain_loop_in_every_world(factory):
    task = make_task(optimizer="adam", model=factory)
    local, virtual = (pl.train(task, "all-reduce", world(2), steps=STEPS) for world in WORLDS.values())
    assert torch.equal(local.parameters, virtual.parameters)
    check_close(local.parameters, train_plainly(task, workers=2)[0])


def test_every_rank_has_the_drivers_model_though_its_factory_gives_another_each_time():
    def factory():
        module = with_weight_norm()
        nn.init.normal_(module[2].weight, generator=torch.Generator().manual_seed(secrets.randbits(32)))
        return module

    task = make_task(model=factory)
    task = dataclasses.replace(task, optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    # On a ring of four, one exchange does not make unequal peers equal.
    run = pl.train(task, "decentralized:consensus_every=1", pl.Local(workers=4, threads=1), steps=1)
    assert run.history[0].extra["consensus"] < 1e-12


def test_a_parametrized_model_that_was_built_already_is_refused_with_the_remedy():
    task = make_task(model=with_weight_norm())
    with raised(TaskError, failure=has("Task(model=lambda")):
        pl.train(task, "single", pl.Local(workers=1), steps=1)
    assert pl.train(task, "single", simulated(1), steps=1).steps == 1


def test_a_parametrized_model_is_simulated_without_its_mathematics():
    task = make_task(model=with_weight_norm)
    assert pl.train(task, "all-reduce", simulated(2, math="none"), steps=2).steps == 2
