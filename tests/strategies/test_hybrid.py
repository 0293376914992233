"""Meshes of workers: any product of rows and stages gives the weights of one worker."""

import pytest
import torch
from conformance.cases import one_in
from refusals import has, refused, unknown
from segmented_models import gpt_task
from tasks import a_task, sgd, simulated
from torch import nn

import paceline as pl
from paceline.testing.checks import check_close

STEPS = 3
MESHES = [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (4, 2), (2, 4), (8, 1), (1, 5)]


def deep():
    layers = [layer for _ in range(5) for layer in (nn.Linear(4, 4), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(4, 2)).double()


def momentum(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=0.01, eps=1e-3)  # so that rounding is not divided by nearly nothing


@pytest.mark.parametrize(
    ("data", "stages", "zero"), one_in(5, [(*mesh, zero) for mesh in MESHES for zero in range(4)])
)
def test_any_mesh_gives_the_weights_of_single(data, stages, zero):
    task = a_task(model=deep, optimizer=adam, clip_norm=0.05, batch_size=7)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    spec = f"hybrid:data={data},pipeline={stages},zero={zero},microbatches=3"
    run = pl.train(task, spec, simulated(data * stages), steps=STEPS)
    check_close(run.parameters, expected.parameters)
    assert run.loss == pytest.approx(expected.loss, rel=1e-12)


@pytest.mark.parametrize(
    ("order", "zero"),
    one_in(5, [(order, zero) for order in ("gpipe", "1f1b", "zb-h1", "zb-h2") for zero in range(4)]),
)
def test_tied_weights_stay_tied(order, zero):
    task = gpt_task(optimizer=adam, clip_norm=0.1)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = pl.train(task, f"hybrid:pipeline=2,order={order},zero={zero}", simulated(4), steps=STEPS)
    check_close(run.parameters, expected.parameters)
    assert torch.equal(run.state["head.weight"], run.state["tokens.weight"])


class OneLayerAgainAndAgain(nn.Module):
    """Every stage of a pipeline uses the same parameters, and some of its own."""

    def __init__(self):
        super().__init__()
        self.again, self.norms = nn.Linear(4, 4), nn.ModuleList(nn.LayerNorm(4) for _ in range(6))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for norm in self.norms:
            x = norm(torch.tanh(self.again(x)) + x)
        return self.head(x)


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ("hybrid:pipeline=3,zero=3,microbatches=2", 6),
        pytest.param("hybrid:pipeline=3,zero=2,microbatches=2,order=zb-h1", 6, marks=pytest.mark.slow),
        pytest.param("hybrid:pipeline=2,zero=3,order=interleaved,chunks=2", 6, marks=pytest.mark.slow),
        pytest.param("zero:stage=3,segments=5,microbatches=2", 3, marks=pytest.mark.slow),
    ],
)
def test_a_layer_that_all_stages_use_learns_from_all_of_them(spec, workers):
    task = a_task(
        model=lambda: OneLayerAgainAndAgain().double(), optimizer=adam, clip_norm=0.05, batch_size=7
    )
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    check_close(pl.train(task, spec, simulated(workers), steps=STEPS).parameters, expected.parameters)


@pytest.mark.slow
def test_tied_weights_have_the_same_bits_in_both_worlds():
    task = gpt_task(optimizer=adam, clip_norm=0.1)
    worlds = (simulated(4), pl.Local(workers=4, threads=1))
    runs = [pl.train(task, "hybrid:pipeline=2,zero=3", world, steps=STEPS) for world in worlds]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        pytest.param("hybrid:tensor=2", 4, marks=pytest.mark.slow),
        ("hybrid:pipeline=2,tensor=2", 4),
        pytest.param("hybrid:pipeline=2,tensor=2,zero=1,order=zb-h1", 8, marks=pytest.mark.slow),
        pytest.param("hybrid:tensor=2,zero=2,microbatches=2", 4, marks=pytest.mark.slow),
        pytest.param("hybrid:tensor=2,zero=3", 4, marks=pytest.mark.slow),
        pytest.param("hybrid:pipeline=2,tensor=2,zero=3", 8, marks=pytest.mark.slow),
    ],
)
def test_three_axes_give_the_weights_of_single(spec, workers):
    task = gpt_task(optimizer=momentum, clip_norm=0.1)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = pl.train(task, spec, simulated(workers), steps=STEPS)
    check_close(run.parameters, expected.parameters)
    assert torch.equal(run.state["head.weight"], run.state["tokens.weight"])


@pytest.mark.parametrize("zero", one_in(3, zip(range(4))))
def test_both_worlds_give_the_same_bits(zero):
    task = a_task(model=deep, optimizer=momentum, clip_norm=0.05, batch_size=7)
    spec = f"hybrid:pipeline=2,zero={zero},microbatches=2"
    runs = [
        pl.train(task, spec, cluster, steps=STEPS)
        for cluster in (simulated(6), pl.Local(workers=6, threads=1))
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_fewer_samples_than_rows():
    task = a_task(model=deep, optimizer=sgd, batch_size=2)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    for zero in (0, 3):
        run = pl.train(task, f"hybrid:pipeline=2,zero={zero}", simulated(8), steps=STEPS)
        check_close(run.parameters, expected.parameters)


def test_chunks_and_any_all_reduce():
    task = a_task(model=deep, optimizer=momentum)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    spec = "hybrid:pipeline=2,order=interleaved,chunks=2,microbatches=4,algorithm=halving-doubling"
    check_close(pl.train(task, spec, simulated(4), steps=STEPS).parameters, expected.parameters)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("hybrid:data=3,pipeline=2", refused("the mesh", has(3, 2, 1), bound=has(4))),
        ("hybrid:pipeline=3", refused("the mesh", has(3, 1), bound=has(4))),
        ("hybrid:pipeline=2,tensor=3", refused("the mesh", has(2, 3), bound=has(4))),
        ("hybrid:data=0", refused("data", 0, bound=has(1))),
        ("hybrid:zero=4", refused("zero", 4, bound=has(0, 1, 2, 3))),
        ("hybrid:pipeline=2,order=2f2b", unknown("order", "2f2b")),
        ("hybrid:algorithm=rings", unknown("algorithm", "rings")),
    ],
)
def test_bad_words_are_refused(spec, refusal):
    with refusal:
        pl.train(a_task(model=deep), spec, simulated(4), steps=1)
