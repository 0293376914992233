"""The server in a round: sampled clients, counted answers, and records."""

import logging
import math

import pytest
import torch
from strategies.local_cases import flat, in_parts, labelled, mean_difference, put
from strategies.server_cases import spans_of
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.fedavg import FedAvg
from paceline.trace import Kind

NBYTES = 43 * 8  # of the parameters of `labelled`


def trained_in(run):
    """The clients that computed in each round."""
    rounds = [set() for _ in run.history]
    for client, spans in enumerate(spans_of(run, Kind.COMPUTE)):
        for step in spans["step"]:
            rounds[step].add(client)
    return rounds


# Sampling


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.3, 3), (0.55, 6), (1.0, 10)])
def test_each_round_the_fraction_of_the_clients_is_sampled_and_one_at_least(fraction, count):
    run = pl.train(labelled(), f"fedavg:batch=0,fraction={fraction}", simulated(10), steps=8)
    assert [len(clients) for clients in trained_in(run)] == [count] * 8
    assert [record["clients"] for record in run.history] == [count] * 8


def test_every_client_is_sampled_about_as_often():
    run = pl.train(labelled(), "fedavg:batch=0,fraction=0.3", simulated(10, math="none"), steps=1000)
    often = [sum(client in clients for clients in trained_in(run)) for client in range(10)]
    # 300 times each, give or take four standard deviations of sqrt(1000 x 0.3 x 0.7).
    assert all(abs(count - 300) < 58 for count in often)


def test_a_sample_that_is_not_taken_costs_no_bytes():
    run = pl.train(labelled(), "fedavg:batch=0,fraction=0.2", simulated(10), steps=5)
    assert run.bytes_sent[10] == 5 * 2 * NBYTES
    assert sum(run.bytes_sent[:10]) == 5 * 2 * NBYTES
    assert [record.bytes for record in run.history] == [4 * NBYTES * (step + 1) for step in range(5)]
    assert run.messages_sent[10] == 5 * 10, "those who are not sampled hear that they are not"


def test_only_sampled_clients_count():
    task, sizes = labelled(), (10, 20, 30)
    parts = in_parts(*sizes)(None, 3, 0)
    strategy = FedAvg(batch=0, fraction=0.4, partition=in_parts(*sizes))
    run = pl.train(task, strategy, simulated(3), steps=6)
    model = task.build_model(0)
    for clients in trained_in(run):
        put(model, flat(model) + mean_difference(task, model, [parts[client] for client in clients], 1))
    torch.testing.assert_close(run.parameters, flat(model), rtol=0, atol=1e-12)


# Dropping out


@pytest.mark.parametrize("world", WORLDS)
def test_weights_are_renormalised_over_the_clients_that_did_not_drop_out(world):
    task, sizes = labelled(), (6, 12, 18, 24)
    parts = in_parts(*sizes)(None, 4, 0)
    strategy = FedAvg(batch=0, epochs=2, dropout=0.4, partition=in_parts(*sizes))
    run = pl.train(task, strategy, WORLDS[world](4), steps=8)
    rounds, model = trained_in(run), task.build_model(0)
    assert {len(clients) for clients in rounds} & {1, 2, 3}, "somebody dropped out"
    assert [record["clients"] for record in run.history] == [len(clients) for clients in rounds]
    for clients in rounds:
        if clients:
            put(model, flat(model) + mean_difference(task, model, [parts[c] for c in sorted(clients)], 2))
    torch.testing.assert_close(run.parameters, flat(model), rtol=0, atol=1e-12)


def test_clients_drop_out_as_often_as_they_are_told():
    run = pl.train(labelled(), "fedavg:batch=0,dropout=0.25", simulated(10, math="none"), steps=400)
    answered = sum(record["clients"] for record in run.history)
    # 3,000 of 4,000, give or take four standard deviations.
    assert abs(answered - 3000) < 4 * math.sqrt(4000 * 0.25 * 0.75)


@pytest.mark.parametrize("spec", ["fedavg", "fedavgm", "fedadam"])
def test_a_round_in_which_all_drop_out_leaves_the_model_as_it_is_and_is_told_once(spec, caplog):
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = pl.train(labelled(), f"{spec}:batch=0,dropout=0.9", simulated(2), steps=30, evaluate_every=1)
    alone = [number for number, record in enumerate(run.history) if not record["clients"]]
    assert len(alone) > 10
    assert len(alone) < 30
    said = [record.message for record in caplog.records]
    assert said == [f"no client answered in round {alone[0]}; the model is unchanged"]
    assert all(math.isnan(run.history[number].loss) for number in alone)
    for number in alone[1:]:
        assert run.history[number].metric == run.history[number - 1].metric
        assert run.history[number].samples == run.history[number - 1].samples


def test_a_run_in_which_nobody_ever_answers_ends_with_the_model_it_began_with():
    task = labelled()
    run = pl.train(task, "fedavgm:batch=0,dropout=0.999999", simulated(3), steps=5)
    assert torch.equal(run.parameters, flat(task.build_model(0)))


# The record


def test_the_loss_is_the_mean_over_the_samples_of_the_round():
    task, sizes = labelled(), (15, 45)
    run = pl.train(task, FedAvg(batch=0, partition=in_parts(*sizes)), simulated(2), steps=1)
    model = task.build_model(0)
    inputs, targets = task.data
    assert run.loss == pytest.approx(task.loss(model(inputs), targets).item(), rel=1e-12)


def test_it_stops_for_everybody_one_round_after_the_target_is_reached():
    task = labelled(target=0.7)
    runs = [
        pl.train(task, "fedavg:epochs=2", world(3), steps=60, evaluate_every=1, stop_at_target=True)
        for world in WORLDS.values()
    ]
    reached = next(record.step for record in runs[0].history if record.metric >= 0.7)
    assert [run.steps for run in runs] == [reached + 1] * 2
    assert reached + 1 < 60


def test_the_server_waits_for_the_slowest_client():
    cluster = simulated(4, slow={2: 5.0}, link=pl.Link.ideal())
    run = pl.train(labelled(), "fedavg:batch=0", cluster, steps=3)
    assert run.seconds == pytest.approx(3 * 0.05)


def test_a_round_takes_the_servers_port_twice_for_each_client():
    """c n bytes go out and c n come in. Clients compute at the same time, each after its model has arrived."""
    link = pl.Link("1Mbps", "0s")
    run = pl.train(
        labelled(), "fedavg:batch=0", simulated(5, compute=pl.times.Constant(1.0), link=link), steps=1
    )
    carry_s = NBYTES * link.seconds_per_byte
    assert run.seconds == pytest.approx(1.0 + 6 * carry_s, rel=1e-6), (
        "the last client's model, and its answer"
    )
