"""`torch.autocast` around `pl.train` applies to every rank, in every world."""

import pytest
import torch
from tasks import WORLDS, a_task, numbers, simulated
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches

STEPS = 5
DATA = (numbers(24, 4).float(), numbers(24, 2, seed=1).float())


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def the_task(**changes):
    return a_task(**({"model": model, "data": DATA, "optimizer": optimizer} | changes))


def trained(world, spec="single", task=None, workers=2, **changes):
    with torch.autocast("cpu", torch.bfloat16, **changes):
        run = pl.train(task or the_task(), spec, WORLDS[world](workers), steps=STEPS)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    return run


def trained_plainly():
    """The equivalent plain PyTorch loop."""
    module = the_task().build_model(0)
    stepper = optimizer(module.parameters())
    batches = GlobalBatches(24, 8, 0)
    for step in range(STEPS):
        inputs, targets = (tensor[torch.from_numpy(batches.indices(step))] for tensor in DATA)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(module(inputs), targets)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_the_weights_are_those_of_a_loop_under_autocast(world, cache, one_thread):
    expected = trained_plainly()
    assert torch.equal(trained(world, cache_enabled=cache).parameters, expected)
    without = pl.train(the_task(), "single", WORLDS[world](1), steps=STEPS)
    assert not torch.equal(without.parameters, expected)


@pytest.mark.parametrize("spec", ["all-reduce", "sync", "local-sgd:period=2", "fedavg"])
def test_processes_and_simulation_give_the_same_bits(spec):
    runs = [trained(world, spec, workers=3) for world in WORLDS]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_computing_threads_have_it_too():
    """With several buckets, backward continues in a thread while the first buckets are sent."""
    threads = trained("local", "all-reduce:bucket_mb=0.0001")
    assert torch.equal(threads.parameters, trained("simulated", "all-reduce").parameters)


@pytest.mark.parametrize("world", WORLDS)
def test_evaluation_is_under_it(world):
    def is_half(outputs, targets):
        return float(outputs.dtype == torch.bfloat16)

    task = the_task(test=DATA, metric=is_half)
    assert trained(world, "all-reduce", task).metric == 1.0
    assert pl.train(task, "all-reduce", simulated(2), steps=1).metric == 0.0


def test_updates_are_not():
    """An optimizer that multiplies matrices uses the precision of the parameters."""

    class Multiplying(torch.optim.SGD):
        def step(self, closure=None):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
            super().step()

    trained("simulated", task=the_task(optimizer=lambda params: Multiplying(params, lr=0.1)))


def test_a_run_says_that_it_was_under_autocast():
    assert trained("simulated").environment["autocast"] == "cpu bfloat16"
    assert "autocast" not in pl.train(the_task(), "single", simulated(1), steps=1).environment
