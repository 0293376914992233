import math

import pytest
import torch
from refusals import has, refused
from strategies.local_cases import flat, in_parts, labelled, mean_difference, put
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.fedadam import FedAdam


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("beta1", "beta2", "tau"), [(0.9, 0.99, 1e-3), (0.0, 0.5, 0.1)])
def test_the_server_takes_the_steps_of_algorithm_2(beta1, beta2, tau, world):
    task, sizes, rounds = labelled(), (35, 25), 5
    strategy = FedAdam(
        server_lr=0.05, beta1=beta1, beta2=beta2, tau=tau, batch=0, epochs=2, partition=in_parts(*sizes)
    )
    run = pl.train(task, strategy, WORLDS[world](2), steps=rounds)
    model, parts = task.build_model(0), in_parts(*sizes)(None, 2, 0)
    m, v = torch.zeros_like(flat(model)), torch.full_like(flat(model), tau**2)
    for _ in range(rounds):
        difference = mean_difference(task, model, parts, 2)
        m = beta1 * m + (1 - beta1) * difference
        v = beta2 * v + (1 - beta2) * difference**2
        put(model, flat(model) + 0.05 * m / (v.sqrt() + tau))
    torch.testing.assert_close(run.parameters, flat(model), rtol=0, atol=1e-12)


def test_a_large_tau_makes_it_fedavg_with_a_smaller_rate():
    """Reddi et al.: tau sets how adaptive it is. Here m / (sqrt(v) + tau) is all but difference / (2 tau)."""
    task = labelled()
    adaptive = pl.train(
        task, "fedadam:tau=1e6,beta1=0,beta2=0.999999999,server_lr=2e6,batch=0", simulated(3), steps=3
    )
    plain = pl.train(task, "fedavg:batch=0", simulated(3), steps=3)
    torch.testing.assert_close(adaptive.parameters, plain.parameters, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"beta1": 1.0}, refused("beta1", 1.0)),
        ({"beta2": -0.1}, refused("beta2", -0.1)),
        ({"tau": 0.0}, refused("tau", bound=has(0))),
        ({"tau": math.nan}, refused("tau", bound=has(0))),
        ({"dropout": 1.0}, refused("dropout", 1.0)),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        FedAdam(**changes)
