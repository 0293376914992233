import torch
from tasks import a_task
from torch import nn

from paceline.model.engines.shape_model import ShapeModel
from paceline.model.memory.shapes import resized


def model_of(task):
    return ShapeModel(task, task.build_model(0).to("meta"))


def state_bytes(model, *shard):
    holding, state = model.holding, model.memory.optimizer_state()
    return holding.optimizer_bytes(holding.layout, state, slice(*shard) if shard else None)


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def few():
    return torch.ones(3, 4).double(), torch.ones(3, 2).double()


def test_samples_become_as_many_as_are_asked_for_and_lose_their_data():
    inputs, names = resized((torch.ones(3, 4), ["a"]), 7)
    assert inputs.is_meta
    assert inputs.shape == (7, 4)
    assert names == ["a"]


def test_a_tensor_that_has_no_place_for_samples_stays_as_it_is():
    _, mask = resized((torch.ones(3, 4), torch.ones(5, 5)), 7)
    assert mask.shape == (5, 5)


def test_activations_are_those_of_the_samples_asked_for():
    memory = model_of(a_task(model=model)).memory
    assert memory.activations(8, few) == 2 * memory.activations(4, few) > 0


def test_each_part_of_the_parameters_has_its_part_of_what_the_optimizer_remembers():
    found = model_of(a_task(model=model, optimizer=torch.optim.Adam))
    assert state_bytes(found) == 2 * found.holding.parameter_bytes
    assert state_bytes(found, 2, 8) == 2 * 8 * 6


def test_an_optimizer_that_cannot_run_without_data_remembers_nothing():
    class Looks(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].detach().sum().item()

    found = model_of(a_task(model=model, optimizer=lambda params: Looks(params, lr=1.0)))
    assert state_bytes(found, 0, 10) == 0
