"""Consensus of the peers as predicted by theory, and convergence of D-PSGD."""

import networkx as nx
import numpy as np
import pytest
import torch
from refusals import has, refused
from tasks import a_task, numbers, samples, simulated
from torch import nn

import paceline as pl
from paceline.schedules.topologies import build_topology, spectral_gap
from paceline.strategies.decentralized import Decentralized


def only_at_first(optimizer):
    """A schedule by which the first update counts and no other does: after it peers do nothing but average."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))


def averaging(**changes):
    """A task of pure averaging, which starts from the different parameters after the first step."""
    return a_task(**({"schedule": only_at_first, "data": samples(64), "batch_size": 64} | changes))


def consensus(run):
    return np.array([record["consensus"] for record in run.history])


GRAPHS = {
    "ring": 16,
    "torus": 16,
    "hypercube": 16,
    "exponential": 12,
    "star": 8,
    "path": 5,
    "random-regular:degree=4": 14,
    "one-peer-exponential": 6,
}


@pytest.mark.parametrize("topology", GRAPHS)
def test_the_mean_is_kept_at_every_mixing(topology):
    runs = [
        pl.train(averaging(), f"decentralized:topology={topology}", simulated(GRAPHS[topology]), steps=steps)
        for steps in (1, 2, 3, 7)
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.parameters, runs[0].parameters, rtol=0, atol=1e-15)
    assert runs[-1].history[-1]["consensus"] < 0.9 * runs[0].history[-1]["consensus"]


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param("ring", marks=pytest.mark.slow),  # the topology with the smallest gap
        "torus",
        "hypercube",
        "star",
        "path",
        "random-regular:degree=4",
    ],
)
def test_agreement_grows_by_the_spectral_gap(topology):
    peers = GRAPHS[topology]
    spec = f"decentralized:topology={topology},consensus_every=1"
    shrunk = 1 - spectral_gap(build_topology(topology, peers))
    # Long enough for all but the slowest mode to have died out, and not so long that rounding shows.
    steps = int(np.log(1e-9) / np.log(shrunk))
    measured = consensus(pl.train(averaging(), spec, simulated(peers), steps=steps))
    # Modes of the same rate but opposite signs may take turns: two steps are by the square.
    assert measured[-1] / measured[-3] == pytest.approx(shrunk**2, rel=0.01)


def test_agreement_grows_as_the_whole_matrix_says_when_peers_hold_a_slow_mode():
    run = pl.train(averaging(), "decentralized:consensus_every=1", simulated(16), steps=40)
    ratios = consensus(run)[1:] / consensus(run)[:-1]
    rate = 1 - 4 / 3 * np.sin(np.pi / 16) ** 2
    assert (ratios <= rate + 1e-9).all(), "no mode dies out more slowly"
    assert ratios[-1] == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(("peers", "mixings"), [(2, 1), (4, 2), (8, 3), (16, 4)])
def test_one_peer_exponential_averages_exactly_after_log2_n_steps(peers, mixings):
    spec = "decentralized:topology=one-peer-exponential,consensus_every=1"
    measured = consensus(pl.train(averaging(), spec, simulated(peers), steps=mixings + 4))
    assert (measured[:mixings] > 1e-3 * measured[0]).all()
    assert (measured[mixings:] < 1e-15).all()


def least_squares(noise, **changes):
    x = numbers(256, 4)
    y = x @ numbers(4, 1, seed=1) + noise * numbers(256, 1, seed=2)
    task = a_task(
        model=lambda: nn.Linear(4, 1, bias=False).double(),
        data=(x, y),
        batch_size=256,
        **changes,
    )
    return task, torch.linalg.lstsq(x, y).solution.flatten()


@pytest.mark.slow
def test_linear_regression_reaches_the_solution_that_all_peers_share():
    # Without noise all slices have the same least-squares solution, and all peers converge to it.
    task, answer = least_squares(noise=0.0)
    run = pl.train(task, "decentralized", simulated(8), steps=600)
    torch.testing.assert_close(run.parameters, answer, rtol=0, atol=1e-12)
    assert run.history[-1]["consensus"] < 1e-12


@pytest.mark.slow
def test_linear_regression_with_noise_comes_nearer_as_the_step_size_falls():
    # Slices disagree about the solution, by about the noise; a step size of 1/t averages that out.
    def falling(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 20))

    task, answer = least_squares(noise=0.5, schedule=falling)
    short, long = (pl.train(task, "decentralized", simulated(8), steps=steps) for steps in (50, 1200))
    distances = [float((run.parameters - answer).norm()) for run in (short, long)]
    assert distances[1] < 3e-3 * answer.norm()
    assert distances[1] < 0.1 * distances[0]
    assert long.history[-1]["consensus"] < 0.1 * short.history[-1]["consensus"]


def two_rings(peers):
    return nx.disjoint_union(nx.cycle_graph(peers // 2), nx.cycle_graph(peers - peers // 2))


def test_a_disconnected_graph_is_refused():
    with refused("topology", has(2)):
        Decentralized(topology=two_rings(8))


def test_components_never_agree_where_they_are_allowed():
    strategy = Decentralized(topology=two_rings(8), allow_disconnected=True, consensus_every=1)
    measured = consensus(pl.train(averaging(), strategy, simulated(8), steps=200))
    assert measured[-1] == pytest.approx(measured[-50], rel=1e-12)
    assert measured[-1] > 0.01 * measured[0]


def swapping_ring(peers):
    return (
        np.eye(peers, k=1) + np.eye(peers, k=-1) + np.eye(peers, k=peers - 1) + np.eye(peers, k=1 - peers)
    ) / 2


def test_a_matrix_that_oscillates_is_refused_and_never_settles_where_it_is_allowed():
    with refused("weights", has(2)):
        Decentralized(topology=swapping_ring(4))
    strategy = Decentralized(topology=swapping_ring(4), allow_disconnected=True, consensus_every=1)
    measured = consensus(pl.train(averaging(), strategy, simulated(4), steps=100))
    assert measured[-1] == pytest.approx(measured[-3], rel=1e-12)
    assert measured[-1] > 0.01 * measured[0]
