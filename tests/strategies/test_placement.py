"""Placement of the servers: on separate nodes, on the first worker, or on all workers."""

import itertools

import pytest
import torch
from conformance.cases import one_in
from refusals import has, raised, refused, unknown
from strategies.server_cases import VARIANTS
from tasks import WORLDS, a_task, simulated

import paceline as pl
from paceline.clusters.simulated.learner import SimulatedLearner
from paceline.errors import WorkerError
from paceline.strategies import STRATEGIES, parse
from paceline.strategies.central_storage import CentralStorage

STEPS = 8
PARAMETERS = 4 * 5 + 5 + 5 * 2 + 2  # in float64


def placed(spec, placement):
    return f"{spec}{',' if ':' in spec else ':'}placement={placement}"


def gradients_applied(run):
    return sum(run.staleness.values())


@pytest.mark.parametrize(
    ("spec", "placement", "world"), one_in(3, itertools.product(VARIANTS, ["worker", "all"], WORLDS))
)
def test_every_variant_runs_where_workers_serve(spec, placement, world):
    run = pl.train(a_task(), placed(spec, placement), WORLDS[world](3), steps=STEPS)
    gradients = {"sync": 3, "async": 1, "ssp": 1}.get(spec.partition(":")[0], 2)
    assert run.steps == STEPS
    assert gradients_applied(run) == STEPS * gradients
    assert len(run.bytes_sent) == 3, "no rank serves alone"


@pytest.mark.parametrize("spec", VARIANTS)
def test_it_makes_no_difference_to_the_weights_which_rank_serves_where_messages_cost_nothing(spec):
    cluster = simulated(4, compute=pl.times.Exponential(1.0), link=pl.Link.ideal())
    expected = pl.train(a_task(), spec, cluster, steps=STEPS)
    run = pl.train(a_task(), placed(spec, "worker"), cluster, steps=STEPS)
    assert torch.equal(run.parameters, expected.parameters)
    assert run.staleness == expected.staleness


def test_a_rank_that_serves_and_computes_sends_nothing_to_itself():
    sent = pl.train(a_task(), "sync:placement=worker", simulated(4), steps=STEPS).bytes_sent
    nbytes = PARAMETERS * 8
    assert sent == [3 * nbytes * STEPS, *[nbytes * STEPS] * 3]


def test_with_shards_on_all_workers_no_port_is_the_bottleneck():
    def busiest(spec):
        return max(pl.train(a_task(), spec, simulated(4), steps=STEPS).bytes_sent)

    # A server alone sends p n a step; with a shard of n/p each, p - 1 pushes and as many pulls pass each port.
    assert busiest("sync") == 4 * PARAMETERS * 8 * STEPS
    orders = 3 * STEPS * 200  # the first server's messages to the others: the gradients of each update
    assert busiest("sync:placement=all") < 2 * 3 / 4 * PARAMETERS * 8 * STEPS + orders


@pytest.mark.parametrize("world", WORLDS)
def test_an_error_in_the_computing_half_of_a_rank_ends_the_run(world):
    def explode(outputs, targets):
        raise LookupError("no such loss")

    task = a_task(loss=explode)
    with raised(WorkerError, cause="LookupError: no such loss"):
        pl.train(task, "sync:placement=worker", WORLDS[world](2), steps=2)


@pytest.mark.parametrize("spec", ["sync:placement=all,servers=2", "async:placement=worker,servers=3"])
def test_servers_beside_workers_that_serve_are_refused(spec):
    with refused("servers", bound=has(1)):
        parse(spec)


def test_an_unknown_placement_is_refused_with_the_known_ones():
    with unknown("placement", "moon"):
        parse("sync:placement=moon")


def test_a_worker_of_central_storage_holds_no_parameters_between_its_steps(monkeypatch):
    flats, held, apply = {}, [], SimulatedLearner.apply

    class Watched(CentralStorage):
        async def worker(self, ctx):
            flats[ctx.rank] = ctx.model.parameters
            await super().worker(ctx)

    async def watched(model, shard=None, **how):
        held.append([flats[rank].untyped_storage().nbytes() for rank in range(3)])
        await apply(model, shard, **how)

    monkeypatch.setattr(SimulatedLearner, "apply", watched)
    # Every worker has pushed when an update happens, and none has the next parameters yet.
    run = pl.train(a_task(), Watched(), simulated(3), steps=STEPS)
    assert held == [[0, 0, 0]] * STEPS
    monkeypatch.undo()
    assert torch.equal(run.parameters, pl.train(a_task(), "sync", simulated(3), steps=STEPS).parameters)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("one-device", "single"),
        ("mirrored", "all-reduce"),
        ("multi-worker-mirrored", "all-reduce"),
        ("parameter-server", "async"),
        ("central-storage", "central-storage"),
    ],
)
def test_the_names_that_tensorflow_users_know_are_known(name, known):
    assert type(parse(name)) is STRATEGIES[known]


def test_a_name_of_tensorflow_takes_the_parameters_of_what_it_stands_for():
    assert parse("parameter-server:servers=2") == parse("async:servers=2")
