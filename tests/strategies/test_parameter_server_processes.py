"""Parameter servers in processes: results do not depend on which worker is first, and cancelling stops
computations."""

import time

import numpy as np
import pytest
import torch
from conformance.cases import STEPS, in_turn, make_task, one_in, single
from refusals import has, refused
from strategies.server_cases import (
    VARIANTS,
    Ledger,
    Level,
    count_spans,
    lengths_s,
    negated_mean,
    with_servers,
)
from tasks import a_task, numbers
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.links.memory.lending import LEAST_BYTES
from paceline.trace import Kind

SERVERS = (1, 2)
# `make test` tests every variant, with one or two servers.
WITH_SERVERS = [
    (spec, servers) for spec, few in in_turn(zip(VARIANTS), SERVERS) for servers in (few, 3 - few)
]


def a_regression():
    """A target that a linear model meets exactly."""
    inputs = numbers(120, 4, seed=1)
    return a_task(
        model=lambda: nn.Linear(4, 2, bias=False).double(),
        data=(inputs, inputs @ numbers(4, 2, seed=2)),
        batch_size=12,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "servers"), one_in(3, in_turn(zip(VARIANTS), SERVERS)))
def test_every_variant_learns_in_processes(spec, servers):
    run = pl.train(a_regression(), with_servers(spec, servers), pl.Local(workers=3), steps=150)
    losses = [record.loss for record in run.history]
    assert np.mean(losses[-10:]) < 0.01 * losses[0]
    assert [record.step for record in run.history] == list(range(1, 151))
    gradients = 3 if spec == "sync" else 2 if "k=2" in spec else 1
    assert sum(run.staleness.values()) == 150 * gradients
    assert count_spans(run, Kind.UPDATE, "server") == 150 * servers


@pytest.mark.parametrize(("spec", "servers"), one_in(4, WITH_SERVERS))
def test_no_gradient_is_lost_or_applied_twice_in_processes(spec, servers):
    k = 3 if spec == "sync" else 2 if "k=2" in spec else 1
    cluster = pl.Local(workers=3, delay=pl.times.Exponential(0.003))
    # If updates cancel computations, workers continue to compute while the server waits for a core, for seconds.
    ledger = Ledger(with_servers(spec, servers), cluster, k=k, steps=30, seed=1, gradients_a_worker=4000)
    assert set(np.unique(ledger.applied)) <= {0, 1}
    assert ledger.applied.sum() == 30 * k
    assert (ledger.computed >= ledger.applied.sum(axis=0)).all()
    if spec.startswith(("k-sync", "k-batch-sync")):
        assert set(ledger.run.staleness) == {0}
    else:
        assert (np.diff(ledger.applied, axis=0) <= 0).all(), "a worker's gradients are applied without a gap"


@pytest.mark.parametrize(("spec", "servers"), one_in(4, WITH_SERVERS))
def test_a_worker_never_sees_parameters_of_two_versions(spec, servers):
    """The parameters are read in place, and the server changes them there."""
    length, steps = 2**16, 40
    assert length * 8 / servers > LEAST_BYTES
    task = a_task(
        model=lambda: Level(length),
        data=(torch.zeros(12), torch.zeros(12)),
        loss=negated_mean,
        optimizer=lambda params: torch.optim.SGD(params, lr=float(length)),
        batch_size=3,
    )
    cluster = pl.Local(workers=3, delay=pl.times.Exponential(0.0005))
    run = pl.train(task, with_servers(spec, servers), cluster, steps=steps)
    torch.testing.assert_close(run.parameters, torch.full((length,), float(steps), dtype=torch.float64))


@pytest.mark.parametrize("case", ["clipping", "param-groups", "tied-weights"])
def test_sync_with_several_servers_gives_the_weights_of_single_in_processes(case):
    cluster = pl.Local(workers=3, delay=pl.times.Exponential(0.001))
    run = pl.train(make_task(case, "adam"), "sync:servers=2", cluster, steps=STEPS)
    torch.testing.assert_close(run.parameters, single(case, "adam").parameters, rtol=0, atol=1e-12)


def test_one_worker_in_a_process_gives_the_weights_of_single_asynchronously():
    run = pl.train(make_task("plain", "adam"), "async:servers=2", pl.Local(workers=1), steps=STEPS)
    torch.testing.assert_close(run.parameters, single("plain", "adam").parameters, rtol=0, atol=1e-12)


def a_heavy_task():
    """A gradient of a few milliseconds, so that what is measured is not noise."""
    return a_task(
        model=lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2)).double(),
        data=(numbers(240, 256), numbers(240, 2, seed=1)),
        batch_size=120,
    )


@pytest.mark.parametrize("spec", ["k-sync:k=2", "k-batch-sync:k=2"])
def test_a_slow_workers_computations_are_cancelled_before_their_ends(spec):
    factor = 10_000.0  # a gradient of seconds: on a busy machine the quick workers may take turns for a while
    run = pl.train(a_heavy_task(), spec, pl.Local(workers=3, slow={2: factor}), steps=20)
    quick_s = np.concatenate([lengths_s(run.trace.spans[rank].of(Kind.COMPUTE)) for rank in (0, 1)])
    cancelled_s = lengths_s(run.trace.spans[2].of(Kind.CANCELLED))
    assert len(cancelled_s) > 0
    assert cancelled_s.min() < factor * np.median(quick_s)


def test_a_delay_is_cut_short():
    cluster = pl.Local(workers=3, delay={2: pl.times.Constant(30.0)})
    run = pl.train(a_task(), "k-sync:k=2", cluster, steps=10)
    cancelled_s = lengths_s(run.trace.spans[2].of(Kind.CANCELLED))
    assert len(cancelled_s) == 10, "one an update"
    assert cancelled_s.max() < 30.0
    assert len(run.trace.spans[2].of(Kind.COMPUTE)) == 0


class Drowsy(nn.Module):
    """A layer that takes its time over samples that are marked."""

    SECONDS = 0.05

    def forward(self, x):
        if x[0, 0] > 0:
            time.sleep(self.SECONDS)
        return x


LAYERS = 60
DROWSY_STEPS = 12


def a_deep_task():
    """The third of three workers gets the marked samples, and needs three seconds for the forward pass."""
    batches = GlobalBatches(6 * DROWSY_STEPS, 6, seed=0)
    inputs = numbers(6 * DROWSY_STEPS, 2, seed=1)
    inputs[:, 0] = -1.0
    for step in range(DROWSY_STEPS):
        inputs[batches.slice(step, 2, 3).indices, 0] = 1.0
    return a_task(
        model=lambda: nn.Sequential(*(Drowsy() for _ in range(LAYERS)), nn.Linear(2, 1).double()),
        data=(inputs, numbers(6 * DROWSY_STEPS, 1, seed=2)),
        batch_size=6,
    )


def test_a_cancelled_forward_pass_stops_between_layers():
    run = pl.train(a_deep_task(), "k-sync:k=2", pl.Local(workers=3), steps=DROWSY_STEPS // 2, seed=0)
    cancelled_s = lengths_s(run.trace.spans[2].of(Kind.CANCELLED))
    assert len(cancelled_s) > 0
    assert cancelled_s.min() < LAYERS * Drowsy.SECONDS


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("k-sync:k=4", refused("k", 4, bound=has(1, 3))),
        ("k-async:k=0", refused("k", 0, bound=has(1, 3))),
        ("ssp:staleness=-1", refused("staleness", -1, bound=has(0))),
    ],
)
def test_what_does_not_fit_the_cluster_is_refused_before_a_process_starts(spec, refusal):
    with refusal:
        pl.train(a_task(), spec, pl.Local(workers=3), steps=1)
