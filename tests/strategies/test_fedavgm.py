import pytest
import torch
from refusals import has, refused
from strategies.local_cases import flat, in_parts, labelled, mean_difference, put
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.fedavgm import FedAvgM


@pytest.mark.parametrize("world", WORLDS)
def test_without_momentum_it_is_fedavg(world):
    details = "epochs=2,batch=5,partition=dirichlet,fraction=0.6,dropout=0.1"
    heavy, plain = (
        pl.train(labelled(), f"{spec},{details}", WORLDS[world](3), steps=5)
        for spec in ("fedavgm:momentum=0", "fedavg:server_lr=1")
    )
    assert torch.equal(heavy.parameters, plain.parameters)


@pytest.mark.parametrize(("momentum", "server_lr"), [(0.9, 1.0), (0.5, 0.3)])
def test_the_server_moves_as_sgd_with_momentum_does(momentum, server_lr):
    task, sizes, rounds = labelled(), (35, 25), 5
    strategy = FedAvgM(momentum=momentum, server_lr=server_lr, batch=0, epochs=2, partition=in_parts(*sizes))
    run = pl.train(task, strategy, simulated(2), steps=rounds)
    model, parts = task.build_model(0), in_parts(*sizes)(None, 2, 0)
    weights = torch.nn.Parameter(flat(model))
    optimizer = torch.optim.SGD([weights], lr=server_lr, momentum=momentum)
    for _ in range(rounds):
        weights.grad = -mean_difference(task, model, parts, 2)
        optimizer.step()
        put(model, weights.detach())
    torch.testing.assert_close(run.parameters, weights.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_momentum_that_cannot_be_right_is_refused(momentum):
    with refused("momentum", momentum):
        FedAvgM(momentum=momentum)


def test_what_fedavg_refuses_is_refused_too():
    with refused("epochs", 0, bound=has(1)):
        FedAvgM(epochs=0)
