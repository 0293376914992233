"""D-PSGD: four steps by hand, the same bits in every world, costs, records and refusals."""

import importlib.util
import itertools
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from conformance.cases import OPTIMIZERS, in_turn, make_task, one_in, single
from refusals import has, raised, refused, unknown
from tasks import WORLDS, a_task, samples, simulated
from torch import nn

import paceline as pl
from paceline.clusters.base.job import Cluster
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import WorkerError
from paceline.schedules.topologies import build_topology
from paceline.strategies import describe, parse
from paceline.strategies.decentralized import Decentralized

STEPS = 5
EXAMPLE = Path(__file__).parents[2] / "examples" / "topologies.py"


def consensus(run):
    return np.array([record["consensus"] for record in run.history])


def train_plainly(task, topology, order, workers, steps=STEPS, seed=0):
    """The mean of the peers of a loop of plain PyTorch over models of their own."""
    models = [task.build_model(seed) for _ in range(workers)]
    optimizers = [task.build_optimizer(model) for model in models]
    data = Samples(task.build_data())
    batches = GlobalBatches(data.length, task.batch_size, seed)

    def adapt():
        for optimizer in optimizers:
            optimizer.step()

    def combine(step):
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            rows = np.stack([parameter.detach().numpy().ravel() for parameter in parameters])
            for parameter, row in zip(parameters, topology.matrix(step) @ rows, strict=True):
                parameter.data.copy_(torch.from_numpy(row).view_as(parameter))

    for step in range(steps):
        for worker, model in enumerate(models):
            batch = batches.slice(step, worker, workers)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            if batch.count:
                *inputs, target = data.fetch(batch.indices)
                (task.loss(model(*inputs), target) * (workers * batch.count / batch.total)).backward()
        for act in (adapt, lambda step=step: combine(step))[:: 1 if order == "adapt-then-combine" else -1]:
            act()
    flat = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    return torch.stack(flat).mean(dim=0)


# The algorithm


@pytest.mark.parametrize("order", ["combine-then-adapt", "adapt-then-combine"])
@pytest.mark.parametrize("topology", ["ring", "star", "exponential", "one-peer-exponential"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_peers_take_the_steps_of_a_plain_loop(topology, order, optimizer):
    task = make_task("batch-not-divisible", optimizer)
    run = pl.train(task, f"decentralized:topology={topology},order={order}", simulated(5), steps=STEPS)
    expected = train_plainly(task, build_topology(topology, 5), order, 5)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


CASES = ["batch-not-divisible", "fewer-samples-than-workers", "param-groups", "schedule"]
LINEAR = [name for name in OPTIMIZERS if name != "adam"]
IN_SIMULATION = itertools.product(CASES, LINEAR, ["simulated"])
IN_PROCESSES = in_turn([(case,) for case in CASES], LINEAR, ["local"])


@pytest.mark.parametrize(("case", "optimizer", "world"), [*IN_SIMULATION, *IN_PROCESSES])
def test_adapt_then_combine_on_the_complete_graph_is_all_reduce(case, optimizer, world):
    spec = "decentralized:topology=complete,weights=uniform,order=adapt-then-combine"
    run = pl.train(make_task(case, optimizer), spec, WORLDS[world](3), steps=STEPS)
    all_reduced = pl.train(make_task(case, optimizer), "all-reduce", simulated(3), steps=STEPS)
    torch.testing.assert_close(run.parameters, all_reduced.parameters, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.parameters, single(case, optimizer).parameters, rtol=0, atol=1e-12)
    assert run.history[-1]["consensus"] < 1e-15


def test_combine_then_adapt_on_the_complete_graph_is_not_all_reduce():
    run = pl.train(make_task(), "decentralized:topology=complete", simulated(3), steps=STEPS)
    assert not torch.allclose(run.parameters, single().parameters, rtol=0, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_single_peer_takes_the_steps_of_single(mode, world):
    run = pl.train(
        make_task("plain", "momentum"), f"decentralized:mode={mode}", WORLDS[world](1), steps=STEPS
    )
    torch.testing.assert_close(run.parameters, single("plain", "momentum").parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("topology", "dtype"),
    one_in(3, in_turn([("ring",), ("exponential",), ("complete",)], [torch.float32, torch.float64])),
)
def test_worlds_and_overlap_and_network_change_no_bit(topology, dtype):
    task = make_task("batch-not-divisible", "adam", dtype)
    spec = f"decentralized:topology={topology},consensus_every=1"
    plain = pl.train(task, spec, simulated(4), steps=STEPS)
    for words, cluster in [
        (spec, pl.Local(workers=4, threads=1)),
        (f"{spec},overlap=no", pl.Local(workers=4, threads=1)),
        (spec, pl.Local(workers=4, link=pl.Link("100Mbps", "1ms"), threads=1)),
        (f"{spec},overlap=no", simulated(4)),
        (spec, simulated(4, compute=pl.times.Exponential(0.1), link=pl.Link("1Mbps", "5ms"))),
    ]:
        other = pl.train(task, words, cluster, steps=STEPS)
        assert torch.equal(plain.parameters, other.parameters)
        assert [r.loss for r in plain.history] == [r.loss for r in other.history]
        assert consensus(plain).tolist() == consensus(other).tolist()


# Cost of a step


BYTES = 8 * 37  # of the parameters of the small perceptron


@pytest.mark.parametrize(
    ("topology", "degree"), [("ring", 2), ("one-peer-exponential", 1), ("exponential", 3), ("complete", 7)]
)
def test_a_step_sends_the_parameters_to_each_neighbour_and_takes_as_long(topology, degree):
    per_byte_s, latency_s = 1e-5, 5e-3
    link = pl.Link(bandwidth=f"{8 / per_byte_s}bps", latency=latency_s)
    exchange_s = latency_s + degree * BYTES * per_byte_s
    for compute_s, overlap in itertools.product((0.001, 0.1), ("yes", "no")):
        cluster = pl.Simulated(workers=8, compute=pl.times.Constant(compute_s), link=link)
        run = pl.train(
            a_task(batch_size=24), f"decentralized:topology={topology},overlap={overlap}", cluster, steps=6
        )
        step_s = max(compute_s, exchange_s) if overlap == "yes" else compute_s + exchange_s
        assert run.step_seconds == pytest.approx(step_s, rel=1e-9)
        assert run.bytes_sent == [6 * degree * BYTES] * 8


def test_without_mathematics_a_step_takes_as_long():
    spec = "decentralized:topology=random-regular:degree=3"
    real, none = (
        pl.train(a_task(), spec, simulated(8, math=math, compute=pl.times.Exponential(0.01)), steps=9)
        for math in ("real", "none")
    )
    assert real.seconds == none.seconds
    assert real.bytes_sent == none.bytes_sent


# Records


def negative_loss(output, target):
    return -float((output - target).square().mean())


@pytest.mark.parametrize("world", WORLDS)
def test_consensus_is_noted_where_the_run_evaluates_and_every_so_many_steps(world):
    task = a_task(test=samples(12), metric=negative_loss)
    run = pl.train(task, "decentralized:consensus_every=4", WORLDS[world](3), steps=11, evaluate_every=5)
    assert [r.step for r in run.history if r.metric is not None] == [5, 10, 11]
    assert [r.step for r in run.history if "consensus" in r.extra] == [4, 5, 8, 10, 11]
    assert all(r.extra.get("consensus", 1) > 0 for r in run.history)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_models_metric_is_that_of_the_mean_and_each_peers_own_can_be_asked_for(mode, world):
    task = a_task(test=samples(12), metric=negative_loss)
    run = pl.train(task, f"decentralized:mode={mode},evaluate_peers=yes", WORLDS[world](3), steps=12)
    inputs, targets = samples(12)
    assert run.metric == pytest.approx(negative_loss(run.model(inputs).detach(), targets), rel=1e-12)
    assert sorted(run.peer_metrics) == [0, 1, 2]
    assert len(set(run.peer_metrics.values())) > 1


@pytest.mark.parametrize("world", WORLDS)
def test_the_run_ends_at_the_step_that_reaches_the_target(world):
    task = a_task(test=samples(), metric=negative_loss, target=-0.9)
    run = pl.train(task, "decentralized", WORLDS[world](3), steps=500, evaluate_every=5, stop_at_target=True)
    assert run.reached_target
    assert run.steps == run.history[-1].step == len(run.history) < 500
    assert run.history[-1].metric >= -0.9
    assert run.seconds_to_target == run.seconds


def test_an_exception_on_one_peer_ends_the_run():
    def loss(output, target):
        if (target == samples()[1][5]).all(dim=1).any():
            raise ValueError("not this one")
        return nn.functional.mse_loss(output, target)

    for world in WORLDS.values():
        with raised(WorkerError, cause="ValueError: not this one"):
            pl.train(a_task(loss=loss), "decentralized", world(3), steps=50)


# Bad input


class NeverRuns(Cluster):
    """A cluster that must not start a run."""

    workers = 6

    def run(self, job, progress=None):
        raise AssertionError("it began")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("mode=fast", unknown("mode", "fast")),
        ("order=random", unknown("order", "random")),
        ("consensus_every=-1", refused("consensus_every", -1, bound=has(0))),
        ("topology=rnig", unknown("topology", "rnig", nearest="ring")),
        ("topology=hypercube", refused("peers", 6)),
        ("topology=random-regular:degree=9", refused("random-regular:degree", 9, bound=has(0, 6))),
        ("topology=erdos-renyi:p=0", refused("topology")),
        ("topology=star,weights=uniform", refused("weights", 2.666666666666667, bound=has(0, 1))),
        ("topology=no/such/file.edges", refused("topology", "no/such/file.edges")),
        ("mode=async,topology=exponential", refused("topology")),
        ("mode=async,topology=one-peer-exponential", refused("topology")),
    ],
)
def test_bad_words_are_refused_before_anything_begins(words, refusal):
    with refusal:
        pl.train(a_task(), f"decentralized:{words}", NeverRuns(), steps=3)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"topology": nx.cycle_graph(5)}, refused("topology", 5, bound=has(6))),
        ({"topology": nx.cycle_graph(7)}, refused("topology", 7, bound=has(6))),
        ({"topology": np.eye(6) * 0.9}, refused("weights", 0.9, bound=has(1))),
        ({"topology": nx.path_graph(6, create_using=nx.DiGraph)}, refused("topology")),
        ({"topology": "ring", "weights": np.full((6, 6), 1 / 6)}, refused("weights")),
        ({"topology": nx.Graph([(0, 6)])}, refused("topology", 6)),
        ({"topology": 3}, refused("weights")),
        ({"topology": None}, refused("weights")),
        ({"weights": 3}, refused("weights", 3)),
        ({"weights": np.full((5, 5), 0.2)}, refused("weights")),
    ],
)
def test_bad_graphs_are_refused_before_anything_begins(given, refusal):
    with refusal:
        pl.train(a_task(), Decentralized(**given), NeverRuns(), steps=3)


# From Python


@pytest.mark.parametrize(
    "given", [nx.cycle_graph(4), build_topology("ring", 4).matrix(), build_topology("ring", 4)]
)
def test_a_graph_a_matrix_and_a_topology_are_what_the_name_is(given):
    strategy = Decentralized(topology=given)
    named, run = (pl.train(a_task(), each, simulated(4), steps=3) for each in ("decentralized", strategy))
    assert torch.equal(named.parameters, run.parameters)
    assert run.strategy.startswith("decentralized:topology=")
    assert strategy in [strategy], "it can be compared"


@pytest.mark.parametrize("world", WORLDS)
def test_weights_may_be_a_matrix_along_the_edges(world):
    weights = 0.5 * np.eye(4) + 0.5 * build_topology("ring", 4).matrix()
    run = pl.train(a_task(), Decentralized(weights=weights), WORLDS[world](4), steps=3)
    same = pl.train(a_task(), Decentralized(topology=weights), WORLDS[world](4), steps=3)
    other = pl.train(a_task(), "decentralized", WORLDS[world](4), steps=3)
    assert torch.equal(run.parameters, same.parameters)
    assert not torch.equal(run.parameters, other.parameters)


def test_a_file_of_edges_is_a_topology(tmp_path):
    path = tmp_path / "ring.edges"
    path.write_text("0 1\n1 2\n2 3\n3 0\n", encoding="utf-8")
    named, words, file = (
        pl.train(a_task(), strategy, simulated(4), steps=3)
        for strategy in ("decentralized", f"decentralized:topology={path}", Decentralized(topology=path))
    )
    assert torch.equal(named.parameters, words.parameters)
    assert torch.equal(named.parameters, file.parameters)


def test_the_words_of_a_topology_with_parameters_make_it_again():
    strategy = parse("decentralized:topology=random-regular:degree=3:seed=2,mode=async")
    assert strategy.topology == "random-regular:degree=3:seed=2"
    assert parse(describe(strategy)) == strategy


@pytest.mark.slow
def test_the_example_tells_who_does_better_than_all_reduce(capsys):
    spec = importlib.util.spec_from_file_location("topologies", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    names = ("all-reduce:algorithm=ring", "decentralized:topology=one-peer-exponential")
    runs = {name: example.train(name, example.simulated(example.SLOW), epochs=4, stop=True) for name in names}
    example.print_runs("two strategies", runs, seconds=(2,), megabytes=(100,))
    told = capsys.readouterr().out
    assert "two strategies" in told
    # Each sends 2 n (p - 1)/p bytes a peer and step, or n: every step is quicker.
    first, second = (runs[name].history[15] for name in names)
    assert second.seconds < 0.5 * first.seconds
    assert second.bytes / first.bytes == pytest.approx(8 / 14, rel=1e-4)
