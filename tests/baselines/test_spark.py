"""MapReduce on Spark as a baseline: the weights of `single`, and arguments that it cannot follow are refused."""

import pytest
import torch
from clusters.spark.executors import in_one_process, needs_spark
from conformance.cases import make_task, single
from refusals import refused
from tasks import a_task

import paceline as pl
from paceline.baselines.spark import Mapper, add, train_with_spark

STEPS = 5


def sum_of_partitions(task, step, workers):
    mapper = Mapper(task, seed=0)
    values = [p.detach().numpy() for p in task.build_model(0).parameters()]
    parts = [mapper.gradient(values, step, worker, workers) for worker in range(workers)]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


@pytest.mark.parametrize("workers", [2, 3, 11])
def test_the_gradients_of_partitions_add_up_to_that_of_the_batch(workers):
    whole, loss, _ = sum_of_partitions(a_task(), 1, 1)
    parts, loss_of_parts, _ = sum_of_partitions(a_task(), 1, workers)
    assert loss == pytest.approx(loss_of_parts, rel=1e-12)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), torch.from_numpy(other), rtol=0, atol=1e-12)


@needs_spark
@pytest.mark.parametrize(
    ("cluster", "argument"),
    [
        (pl.Local(workers=2, slow={1: 2.0}), "slow, delay"),
        (pl.Local(workers=2, link=pl.Link("1Gbps", "50us")), "link"),
        (pl.Simulated(workers=2), "cluster"),
    ],
)
def test_a_cluster_that_it_cannot_follow_is_refused(cluster, argument):
    with refused(argument):
        train_with_spark(a_task(), cluster, steps=1)


@needs_spark
def test_an_argument_that_it_would_ignore_is_refused():
    with refused("ema"):
        train_with_spark(a_task(ema=0.9), pl.Local(workers=2), steps=1)


@pytest.mark.slow
@needs_spark
@in_one_process
def test_a_run_gives_the_weights_of_single():
    run = train_with_spark(make_task("plain", "momentum"), pl.Local(workers=2, deadline_s=300.0), steps=STEPS)
    torch.testing.assert_close(run.parameters, single("plain", "momentum").parameters, rtol=0, atol=1e-12)
    assert run.strategy == "spark"
    assert len(run.history) == STEPS
