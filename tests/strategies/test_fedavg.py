import itertools
import math

import numpy as np
import pytest
import torch
from conformance.cases import in_turn, one_in
from refusals import has, refused, unknown
from strategies.local_cases import flat, in_parts, labelled, mean_difference, put
from tasks import WORLDS, a_task, samples, simulated

import paceline as pl
from paceline.strategies import describe
from paceline.strategies.fedavg import FedAvg

ROUNDS = 6


def plainly(task, parts, rounds, steps, **options):
    model = task.build_model(0)
    for _ in range(rounds):
        put(model, flat(model) + mean_difference(task, model, parts, steps, **options))
    return flat(model)


# Gradient descent


@pytest.mark.parametrize(
    ("clients", "world"), [*((clients, "simulated") for clients in (1, 2, 3, 5)), (2, "local"), (5, "local")]
)
def test_one_full_batch_step_of_every_client_is_gradient_descent(clients, world):
    task = a_task(batch_size=24)
    expected = pl.train(task, "single", simulated(1), steps=ROUNDS)
    run = pl.train(task, "fedavg:batch=0", WORLDS[world](clients), steps=ROUNDS)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)
    losses = [record.loss for record in expected.history]
    assert [record.loss for record in run.history] == pytest.approx(losses, rel=1e-12)
    assert [record.samples for record in run.history] == [24 * (round + 1) for round in range(ROUNDS)]


@pytest.mark.parametrize("sizes", [(23, 1), (3, 1, 20), (10, 0, 14)])
def test_it_is_gradient_descent_with_uneven_and_empty_clients_too(sizes):
    task = a_task(batch_size=24)
    expected = pl.train(task, "single", simulated(1), steps=ROUNDS)
    strategy = FedAvg(batch=0, partition=in_parts(*sizes), allow_empty=True)
    run = pl.train(task, strategy, simulated(len(sizes)), steps=ROUNDS)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("partition", ["dirichlet", "shards"])
def test_it_is_gradient_descent_however_labels_are_parted(partition):
    task = labelled(batch_size=60, optimizer=lambda params: torch.optim.SGD(params, lr=0.2))
    expected = pl.train(task, "single", simulated(1), steps=ROUNDS)
    run = pl.train(task, f"fedavg:batch=0,partition={partition}", simulated(4), steps=ROUNDS)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


def test_the_schedule_goes_by_rounds_as_gradient_descent_does_by_steps():
    task = a_task(
        batch_size=24,
        schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7**step),
    )
    expected = pl.train(task, "single", simulated(1), steps=ROUNDS)
    run = pl.train(task, "fedavg:batch=0", simulated(3), steps=ROUNDS)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


# Several local steps


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_its_weights_are_those_of_a_plain_loop_with_fresh_optimizers(epochs, world):
    task, sizes = labelled(), (30, 9, 21)
    strategy = FedAvg(batch=0, epochs=epochs, partition=in_parts(*sizes))
    run = pl.train(task, strategy, WORLDS[world](3), steps=ROUNDS)
    parts = in_parts(*sizes)(None, 3, 0)
    torch.testing.assert_close(run.parameters, plainly(task, parts, ROUNDS, epochs), rtol=0, atol=1e-12)


def test_the_server_goes_as_far_along_the_difference_as_it_is_told():
    task, sizes = labelled(), (40, 20)
    half = FedAvg(batch=0, epochs=2, server_lr=0.5, partition=in_parts(*sizes))
    run = pl.train(task, half, simulated(2), steps=1)
    model = task.build_model(0)
    moved = mean_difference(task, model, in_parts(*sizes)(None, 2, 0), 2)
    torch.testing.assert_close(run.parameters, flat(model) + 0.5 * moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "details"),
    one_in(
        3,
        in_turn(
            [("fedavg",), ("fedprox",), ("fedavgm",), ("fedadam",)],
            ["epochs=2,batch=4,partition=dirichlet,fraction=0.5,dropout=0.2", "batch=7"],
        ),
    ),
)
def test_processes_and_simulation_give_the_same_bits_and_bytes(spec, details):
    task = labelled(200)
    local, virtual = (
        pl.train(task, f"{spec}:{details}", world(4), steps=ROUNDS) for world in WORLDS.values()
    )
    assert torch.equal(local.parameters, virtual.parameters)
    assert local.bytes_sent == virtual.bytes_sent
    for one, other in zip(local.history, virtual.history, strict=True):
        assert (one.loss, one.samples, one.metric, one.bytes) == (
            other.loss,
            other.samples,
            other.metric,
            other.bytes,
        )


@pytest.mark.parametrize("spec", ["fedavg", "fedprox", "fedavgm", "fedadam"])
def test_without_mathematics_time_and_bytes_are_the_same(spec):
    details = "batch=4,epochs=2,partition=shards,fraction=0.5"
    cluster = {"compute": pl.times.Exponential(0.01), "link": pl.Link("1Mbps", "1ms")}
    real, none = (
        pl.train(labelled(), f"{spec}:{details}", simulated(5, math=math, **cluster), steps=ROUNDS)
        for math in ("real", "none")
    )
    assert none.bytes_sent == real.bytes_sent
    assert [record.seconds for record in none.history] == [record.seconds for record in real.history]
    assert [record.samples for record in none.history] == [record.samples for record in real.history]


@pytest.mark.parametrize("spec", one_in(4, zip(["fedavg", "fedprox", "fedavgm", "fedadam:server_lr=0.1"])))
def test_it_learns(spec):
    joint = ":" if ":" not in spec else ","
    details = f"{joint}batch=5,epochs=2,partition=dirichlet,alpha=0.3,fraction=0.5"
    run = pl.train(labelled(300), spec + details, simulated(8), steps=40)
    assert run.metric > 0.8


def test_a_task_that_learns_alone_starts_near_chance():
    """The untrained model must not already meet the condition of `test_it_learns`."""
    run = pl.train(labelled(300), "fedavg:batch=0", simulated(8), steps=1)
    assert run.metric < 0.6


# Buffers


def test_statistics_of_batch_norm_are_averaged_by_samples_and_counters_are_the_first_clients():
    def model():
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).double()

    sizes = (4, 8, 12)
    inputs, _ = samples()
    strategy = FedAvg(batch=0, epochs=2, partition=in_parts(*sizes))
    run = pl.train(a_task(model=model), strategy, simulated(3), steps=1)
    ends = np.cumsum([0, *sizes])
    means, momentum = [], 0.1
    for start, stop in itertools.pairwise(ends):
        kept = 1 - (1 - momentum) ** 2  # two updates towards the same mean, from zero
        means.append(inputs[start:stop].mean(0) * kept * (stop - start) / 24)
    torch.testing.assert_close(run.state["0.running_mean"], torch.stack(means).sum(0), rtol=0, atol=1e-12)
    assert run.state["0.num_batches_tracked"] == 2


# Partitions and other parameters


def test_clients_without_data_are_refused_by_name_and_allowed_if_asked():
    for world in WORLDS.values():
        with refused("partition", has(1), remedy=has("allow_empty=true")):
            pl.train(a_task(), FedAvg(partition=in_parts(10, 0, 14)), world(3), steps=2)
        run = pl.train(a_task(), FedAvg(partition=in_parts(10, 0, 14), allow_empty=True), world(3), steps=2)
        assert [record["clients"] for record in run.history] == [2, 2]


def test_numbers_cannot_be_parted_by_label():
    with refused("partition"):
        pl.train(a_task(), "fedavg:partition=dirichlet", simulated(2), steps=1)


def test_the_partition_is_another_for_another_partition_seed_and_the_same_for_another_seed():
    task = labelled(batch_size=60, optimizer=lambda params: torch.optim.SGD(params, lr=0.2))
    spec = "fedavg:batch=0,epochs=2,partition=dirichlet"

    def weights_of(spec, seed):
        return pl.train(task, spec, simulated(3), steps=1, seed=seed).parameters

    model = task.build_model(0)
    parts = FedAvg(partition="dirichlet", partition_seed=0).make_partition().parts(task.data[1].numpy(), 3)
    weights = weights_of(spec, 0)
    expected = flat(model) + mean_difference(task, model, parts, 2)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    others = weights_of(f"{spec},partition_seed=1", 0)
    assert not torch.allclose(others, weights, atol=1e-6)
    model = task.build_model(7)
    weights = weights_of(spec, 7)
    expected = flat(model) + mean_difference(task, model, parts, 2)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


def test_a_function_is_named_in_the_words_of_the_strategy():
    assert describe(FedAvg(partition=in_parts(1), epochs=2)) == "fedavg:epochs=2,partition=in_order"


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"fraction": 0.0}, refused("fraction", 0.0, bound=has(1))),
        ({"fraction": 1.1}, refused("fraction", 1.1, bound=has(0))),
        ({"fraction": math.nan}, refused("fraction", has("nan"), bound=has(0))),
        ({"epochs": 0}, refused("epochs", 0, bound=has(1))),
        ({"epochs": 1.0}, refused("epochs", 1.0)),
        ({"batch": -1}, refused("batch", -1, bound=has(0))),
        ({"dropout": 1.0}, refused("dropout", 1.0)),
        ({"dropout": -0.1}, refused("dropout", -0.1)),
        ({"server_lr": 0.0}, refused("server_lr", 0.0)),
        ({"alpha": 0.0}, refused("alpha", 0.0)),
        ({"shards_per_client": 0}, refused("shards_per_client", 0, bound=has(1))),
        ({"partition_seed": -1}, refused("partition_seed", -1, bound=has(0))),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        FedAvg(**changes)


def test_an_unknown_partition_is_answered_with_those_that_are():
    with unknown("partition", "random", bound=has("shards", "iid", "dirichlet")):
        FedAvg(partition="random")
