"""Each check fails for a strategy that violates it. Of all others tests/conformance says that it is."""

import dataclasses
import itertools
import os
from dataclasses import dataclass

import pytest
import torch
from tasks import simulated

from paceline.collectives import all_reduce
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.async_sgd import Async
from paceline.strategies.single import Single
from paceline.testing import checks
from paceline.testing.tasks import make_task, odd_task

DRIVER = os.getpid()


@dataclass(frozen=True, kw_only=True)
class Apart(AllReduce):
    """Each worker goes its own way."""

    async def worker(self, ctx):
        await Single().worker(ctx)


@dataclass(frozen=True, kw_only=True)
class ApartInProcesses(AllReduce):
    """Another strategy in another world."""

    async def worker(self, ctx):
        strategy = AllReduce(algorithm="ring") if os.getpid() == DRIVER else Single()
        await strategy.worker(ctx)


@dataclass(frozen=True, kw_only=True)
class Lazy(AllReduce):
    """Does nothing."""

    async def worker(self, ctx):
        pass


@dataclass(frozen=True, kw_only=True)
class Moody(AllReduce):
    """Another algorithm in each run."""

    def roles(self, workers):
        object.__setattr__(self, "algorithm", next(ALGORITHMS))
        return super().roles(workers)


@dataclass(frozen=True, kw_only=True)
class Forgetful(AllReduce):
    """A strategy that stores a momentum in its own variable, which is lost at each checkpoint."""

    async def worker(self, ctx):
        momentum = ctx.model.gradient.clone()
        async for batch in ctx.batches():
            await ctx.model.compute(batch, weight=batch.weight)
            await all_reduce(ctx.net, ctx.model.gradient, "ring")
            ctx.model.gradient.add_(momentum, alpha=0.5)
            momentum.copy_(ctx.model.gradient)
            await ctx.model.apply()


@dataclass(frozen=True, kw_only=True)
class Mindful(AllReduce):
    """Asks for it by name."""

    async def worker(self, ctx):
        momentum = ctx.model.state("momentum", like=ctx.model.gradient)
        async for batch in ctx.batches():
            await ctx.model.compute(batch, weight=batch.weight)
            await all_reduce(ctx.net, ctx.model.gradient, "ring")
            ctx.model.gradient.add_(momentum, alpha=0.5)
            momentum.copy_(ctx.model.gradient)
            await ctx.model.apply()


def test_what_is_remembered_in_a_variable_is_lost_at_a_checkpoint(tmp_path):
    with pytest.raises(AssertionError):
        checks.check_checkpoints_change_no_bit(Forgetful(), tmp_path)


def test_what_is_remembered_by_name_is_kept(tmp_path):
    checks.check_checkpoints_change_no_bit(Mindful(), tmp_path)


ALGORITHMS = itertools.cycle(["ring", "naive-ring"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gradient_that_is_not_summed_gives_other_weights_than_single(dtype):
    checks.check_weights_of_single(Apart(), simulated(1), dtype=dtype)
    with pytest.raises(AssertionError):
        checks.check_weights_of_single(Apart(), simulated(3), dtype=dtype)


def test_a_gradient_that_is_not_summed_gives_other_statistics():
    checks.check_batch_norm(Apart(), "simulated", 1)
    with pytest.raises(AssertionError):
        checks.check_batch_norm(Apart(), "simulated", 3)


def test_a_strategy_that_differs_between_worlds_is_found_out():
    with pytest.raises(AssertionError):
        checks.check_both_worlds_give_the_same_bits(ApartInProcesses(), 2, odd_task(torch.float32))


def test_a_strategy_that_depends_on_who_is_quicker_is_not_reproducible():
    with pytest.raises(AssertionError):
        checks.check_stragglers_change_no_bit(Async())


def test_a_strategy_that_remembers_its_last_run_is_not_the_same_for_a_seed(tmp_path):
    with pytest.raises(AssertionError):
        checks.check_the_same_seed_gives_the_same_course(Moody(), tmp_path)


def test_a_strategy_that_does_nothing_does_not_depend_on_the_seed(tmp_path):
    with pytest.raises(AssertionError):
        checks.check_another_seed_gives_another_course(Lazy(), tmp_path)


def test_a_strategy_that_does_nothing_does_not_train():
    with pytest.raises(AssertionError):
        checks.check_trains(Lazy(), simulated(2), make_task())


@pytest.fixture(scope="module")
def good():
    return checks.train_for_history("all-reduce:algorithm=ring", "simulated")


def with_record(run, number, **changes):
    """The run with another record in its history."""
    history = list(run.history)
    history[number] = dataclasses.replace(history[number], **changes)
    return dataclasses.replace(run, history=history)


@pytest.mark.parametrize(
    ("check", "number", "changes"),
    [
        (checks.check_steps_count_up, 2, {"step": 2}),
        (checks.check_seconds_never_decrease, 2, {"seconds": 1e-9}),
        (checks.check_seconds_never_decrease, -1, {"seconds": 1e9}),
        (checks.check_samples_and_bytes_never_decrease, 2, {"samples": 0}),
        (checks.check_samples_and_bytes_never_decrease, -1, {"bytes": 10**9}),
        (checks.check_no_metric, 2, {"metric": 1.0}),
        (checks.check_every_sample_is_counted_once, 2, {"samples": 20}),
        (checks.check_losses_are_those_of_single, 2, {"loss": 1.0}),
    ],
)
def test_a_record_that_is_wrong_is_found_out(good, check, number, changes):
    check(good)
    with pytest.raises(AssertionError):
        check(with_record(good, number, **changes))


def test_a_run_without_updates_is_found_out(good):
    checks.check_every_update_has_its_gradients(good)
    with pytest.raises(AssertionError):
        checks.check_every_update_has_its_gradients(checks.train_for_history(Lazy(), "simulated"))
