import math

import pytest
import torch
from refusals import has, refused
from strategies.local_cases import flat, in_parts, labelled, mean_difference
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.fedprox import FedProx

DETAILS = "epochs=3,batch=5,partition=dirichlet,fraction=0.6,dropout=0.1"


@pytest.mark.parametrize("world", WORLDS)
def test_without_its_term_it_is_fedavg(world):
    prox, plain = (
        pl.train(labelled(), f"{spec},{DETAILS}", WORLDS[world](3), steps=5)
        for spec in ("fedprox:mu=0", "fedavg:server_lr=1")
    )
    assert torch.equal(prox.parameters, plain.parameters)


@pytest.mark.parametrize("mu", [0.1, 2.0])
def test_clients_minimise_their_loss_and_the_distance_from_the_model(mu):
    task, sizes = labelled(), (40, 20)
    strategy = FedProx(mu=mu, batch=0, epochs=4, partition=in_parts(*sizes))
    run = pl.train(task, strategy, simulated(2), steps=1)
    model = task.build_model(0)
    moved = mean_difference(task, model, in_parts(*sizes)(None, 2, 0), 4, proximal=mu)
    torch.testing.assert_close(run.parameters, flat(model) + moved, rtol=0, atol=1e-12)


def test_a_heavier_term_holds_clients_nearer():
    task = labelled()
    start = flat(task.build_model(0))
    moved = [
        torch.linalg.vector_norm(
            pl.train(task, f"fedprox:mu={mu},epochs=5,batch=0", simulated(3), steps=1).parameters - start
        )
        for mu in (0.0, 0.5, 2.0)
    ]
    assert moved[0] > moved[1] > moved[2]


@pytest.mark.parametrize("mu", [-0.1, math.inf, math.nan])
def test_a_term_that_cannot_be_right_is_refused(mu):
    with refused("mu", bound=has(0)):
        FedProx(mu=mu)


def test_what_fedavg_refuses_is_refused_too():
    with refused("fraction", 0.0, bound=has(1)):
        FedProx(fraction=0.0)
