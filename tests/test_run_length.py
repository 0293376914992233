import logging

import numpy as np
import pytest
import torch
from refusals import has, raised, refused
from tasks import a_task, samples, simulated

import paceline as pl
from paceline.context import Strategy
from paceline.errors import TaskError
from paceline.run_length import count_updates, count_whole_batches
from paceline.strategies import STRATEGIES, parse
from paceline.strategies.fedavg import FedAvg


def count(task, spec, workers=4, **length):
    strategy = parse(spec)
    return count_updates(
        task, strategy, strategy.roles(workers), **({"steps": None, "epochs": None} | length)
    )


# Samples of an update


@pytest.mark.parametrize(
    ("spec", "updates"),
    [
        ("single", 6),
        ("all-reduce", 6),
        ("sync", 6),
        ("local-sgd", 6),
        ("decentralized", 6),
        ("k-sync:k=3", 8),
        ("k-sync:k=1", 24),
        ("async", 24),
        ("ssp", 24),
        ("hogwild", 24),
        ("decentralized:mode=async", 24),
        ("k-batch-async:k=2", 12),
        ("fedavg", 2),
        ("fedavg:epochs=2", 1),
        ("fedavg:fraction=0.5", 4),
    ],
)
def test_an_update_takes_the_samples_that_its_strategy_gives_it(spec, updates):
    """24 samples in batches of 8, for 4 workers."""
    assert count(a_task(), spec, epochs=2) == updates


@pytest.mark.parametrize("spec", ["async", "hogwild", "decentralized:mode=async"])
@pytest.mark.parametrize(("length", "batch_size", "workers"), [(500, 64, 3), (70, 7, 4), (23, 8, 3)])
def test_slices_of_several_sizes_make_up_whole_passes(spec, length, batch_size, workers):
    task = a_task(data=samples(length), batch_size=batch_size)
    batches = -(-length // batch_size)
    assert count(task, spec, workers, epochs=2) == 2 * batches * workers


@pytest.mark.parametrize("spec", sorted(STRATEGIES))
def test_every_strategy_sees_each_sample_as_often_as_it_was_asked_to(spec):
    task = a_task(data=samples(512), batch_size=64)
    run = pl.train(task, spec, simulated(4), epochs=2)
    an_update = run.history[-1].samples / run.steps
    assert 1024 <= run.history[-1].samples < 1024 + an_update
    assert run.history[-1].epoch == run.history[-1].samples / 512


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["k-sync:k=1", "k-batch-sync:k=2", "fedavg:fraction=0.5,partition=dirichlet"]
)
def test_where_chance_decides_whose_samples_are_taken_the_count_is_about_right(spec):
    labels = torch.arange(450) % 3
    task = a_task(
        data=(samples(450)[0], labels), batch_size=15, loss=lambda outputs, _: outputs.square().mean()
    )
    run = pl.train(task, spec, simulated(4), epochs=4, seed=3)
    assert run.history[-1].samples == pytest.approx(4 * 450, rel=0.15)


def test_clients_are_drawn_as_the_run_draws_them():
    """Two of six clients per round. Some clients have a hundred times as many samples as others."""
    labels = torch.arange(450) % 3
    task = a_task(
        data=(samples(450)[0], labels), batch_size=15, loss=lambda outputs, _: outputs.square().mean()
    )
    for seed in range(3):
        run = pl.train(
            task, "fedavg:fraction=0.3,partition=dirichlet,alpha=0.3", simulated(6), epochs=3, seed=seed
        )
        assert [record.samples >= 1350 for record in run.history] == [False] * (run.steps - 1) + [True]


def test_a_run_has_at_least_one_update():
    task = a_task(data=samples(512), batch_size=64)
    run = pl.train(task, "fedavg:epochs=4", simulated(4), epochs=0.5)
    assert run.steps == 1
    assert run.epochs == 4.0


def test_slices_without_samples_are_counted_too():
    """Two of four workers have no samples, and their updates use none."""
    run = pl.train(a_task(data=samples(24), batch_size=2), "async", simulated(4), epochs=3)
    assert run.history[-1].samples == pytest.approx(72, abs=2)


# Unused properties


def test_steps_are_counted_without_a_look_at_the_data():
    def broken():
        raise KeyError("data")

    assert count(a_task(data=broken), "async", steps=7) == 7
    assert count_whole_batches(a_task(data=broken), steps=7, epochs=None) == 7


def test_neither_model_nor_optimizer_is_built():
    def broken(*_):
        raise KeyError("model")

    assert count(a_task(model=broken, optimizer=broken), "async", epochs=2) == 24


def test_data_are_built_once():
    built = []

    def data():
        built.append(1)
        return samples()

    assert count(a_task(data=data), "async", epochs=2) == 24
    assert len(built) == 1


def test_chance_and_threads_are_left_as_they_were():
    torch.manual_seed(3)
    np.random.seed(3)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    threads = torch.get_num_threads()
    count(a_task(batch_size=7), "k-sync:k=1", epochs=2)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])
    assert torch.get_num_threads() == threads


# Strategies of a user


class _Selfish(Strategy):
    """Only the first worker computes, but the strategy does not state it."""

    async def worker(self, ctx):
        async for batch in ctx.batches():
            if ctx.rank == 0:
                await ctx.model.compute(batch)
                await ctx.model.apply()


def test_a_run_that_saw_far_fewer_samples_than_asked_for_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="paceline"):
        pl.train(a_task(), _Selfish(), simulated(4), epochs=2)
    assert "processed 0.5 epochs in 6 updates instead of 2 epochs" in caplog.text


class _Half(_Selfish):
    def batches_per_update(self, workers):
        return 0.5


def test_an_update_of_a_strategy_that_states_nothing_takes_a_whole_batch():
    assert count(a_task(), _Selfish(), epochs=2) == 6
    assert count(a_task(), _Half(), epochs=2) == 12


def test_clients_that_drop_out_take_no_samples():
    run = pl.train(a_task(), "fedavg:dropout=0.4,fraction=0.7", simulated(4), epochs=5, seed=1)
    assert [record.samples >= 5 * 24 for record in run.history] == [False] * (run.steps - 1) + [True]


def test_rounds_without_samples_are_taken_to_need_a_whole_batch():
    nobody = FedAvg(partition=lambda targets, clients, seed: [[]] * clients, allow_empty=True)
    assert count(a_task(), nobody, epochs=2) == 6


def test_data_that_cannot_be_built_are_not_passed_over():
    def broken():
        raise KeyError("data")

    with raised(TaskError, failure=has("data"), cause=has("KeyError")):
        count(a_task(data=broken), "all-reduce", epochs=1)


@pytest.mark.parametrize(
    ("length", "refusal"),
    [
        ({"steps": 0}, refused("steps", 0)),
        ({"epochs": 0}, refused("epochs", 0)),
        ({"steps": 1, "epochs": 1}, refused("steps", 1)),
    ],
)
def test_what_is_no_length_is_refused(length, refusal):
    with refusal:
        count(a_task(), "async", **length)
    with refusal:
        count_whole_batches(a_task(), **({"steps": None, "epochs": None} | length))
