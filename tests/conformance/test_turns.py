"""Models that are trained in turn (a GAN), with every strategy."""

import itertools

import pytest
import torch
from conformance.cases import ASYNCHRONOUS, CUT, LOCAL, REPRODUCIBLE, SPECS, STEPPED, one_in
from gans import SAMPLES, a_gan, alternate, flat
from refusals import refused
from tasks import simulated

import paceline as pl
from paceline.testing.checks import check_both_worlds_give_the_same_bits, check_close

BATCHES = 4
UPDATES = 2 * BATCHES


def test_single_gives_the_weights_of_a_plain_loop_that_alternates():
    task = a_gan()
    run = pl.train(task, "single", simulated(1), steps=UPDATES)
    check_close(run.parameters, flat(alternate(task, BATCHES)))


@pytest.mark.parametrize(("spec", "workers"), one_in(3, itertools.product(STEPPED, [1, 2, 4])))
def test_a_synchronous_strategy_gives_the_weights_of_single(spec, workers):
    task = a_gan(clip_norm=0.5)
    expected = pl.train(task, "single", simulated(1), steps=UPDATES).parameters
    check_close(pl.train(task, spec, simulated(workers), steps=UPDATES).parameters, expected)


@pytest.mark.parametrize("spec", [spec for spec in CUT if not spec.startswith("zero")])
def test_a_model_in_pieces_refuses_a_step_of_the_users_own(spec):
    with refused("step"):
        pl.train(a_gan(), spec, simulated(2), steps=UPDATES)


@pytest.mark.parametrize(
    "spec", one_in(6, zip(["single", *(spec for spec in REPRODUCIBLE if spec not in CUT)]))
)
def test_both_worlds_give_the_same_bits(spec):
    check_both_worlds_give_the_same_bits(spec, 2, a_gan())


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.partition(":")[0] in ASYNCHRONOUS | LOCAL])
def test_every_other_strategy_trains_both_models(spec):
    task = a_gan()
    start = task.build_model(0)
    run = pl.train(task, spec, simulated(3), steps=UPDATES)
    assert run.steps == UPDATES
    for name in ("g", "d"):
        key = f"{name}.0.weight"
        assert not torch.equal(run.state[key], start.state_dict()[key])
    assert all(torch.isfinite(tensor).all() for tensor in run.state.values())


@pytest.mark.parametrize("spec", ["all-reduce", "sync", "decentralized", "local-sgd", "async"])
def test_the_history_has_each_models_loss_and_what_the_step_told(spec):
    run = pl.train(a_gan(), spec, simulated(2), steps=UPDATES)
    told = {name for record in run.history for name in record.extra}
    assert {"d_loss", "g_loss", "fooled"} <= told


def test_what_a_step_tells_is_the_mean_over_all_samples():
    whole = pl.train(a_gan(), "single", simulated(1), steps=UPDATES).history
    parts = pl.train(a_gan(), "all-reduce", simulated(3), steps=UPDATES).history
    for one, other in zip(whole, parts, strict=True):
        assert other.extra == pytest.approx(one.extra, rel=1e-9)
    assert [sorted(record.extra) for record in whole[:2]] == [["d_loss"], ["fooled", "g_loss"]]


def test_an_epoch_gives_every_model_its_turn_on_every_batch():
    run = pl.train(a_gan(), "single", simulated(1), epochs=1)
    assert run.steps == 2 * -(-SAMPLES // 6)
