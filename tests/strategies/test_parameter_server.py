"""Properties of every variant of the parameter server, for any order of arrival of gradients."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown
from strategies.server_cases import (
    EXPONENTIAL,
    PARETO,
    SHIFTED,
    VARIANTS,
    Ledger,
    count_spans,
    free,
    listening,
    with_servers,
)
from tasks import a_task, samples
from torch import nn

import paceline as pl
from paceline.strategies import STRATEGIES, parse
from paceline.strategies.async_sgd import Async
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import PARAMETERS
from paceline.trace import Kind

STEPS = 20

CANCELLING = ("k-sync", "k-batch-sync")
NOT_CANCELLING = ("sync", "async", "k-async", "k-batch-async", "ssp")


@st.composite
def runs(draw, names):
    """A short run of a variant on any small cluster: its spec, cluster, gradients an update and seed."""
    name, workers = draw(st.sampled_from(names)), draw(st.integers(1, 5))
    k = {"sync": workers}.get(name, 1)
    words = [f"servers={draw(st.integers(1, 3))}"]
    if name.startswith("k-"):
        k = draw(st.integers(1, 2 * workers if "batch" in name else workers))
        words.append(f"k={k}")
    if name == "ssp":
        words.append(f"staleness={draw(st.integers(0, 3))}")
    cluster = free(
        workers,
        draw(st.sampled_from([EXPONENTIAL, SHIFTED, PARETO])),
        slow=draw(st.dictionaries(st.integers(0, workers - 1), st.sampled_from([0.5, 3.0]))),
        link=draw(st.sampled_from([pl.Link.ideal(), pl.Link("1Mbps", "100ms")])),
    )
    return f"{name}:{','.join(words)}", cluster, k, draw(st.integers(0, 2**32 - 1))


def ledger_of(run):
    spec, cluster, k, seed = run
    return Ledger(spec, cluster, k=k, steps=STEPS, seed=seed)


@settings(max_examples=40)
@given(runs(NOT_CANCELLING))
def test_no_gradient_is_lost_or_applied_twice(run):
    ledger = ledger_of(run)
    applied, computed = ledger.applied, ledger.computed
    assert set(np.unique(applied)) <= {0, 1}
    assert applied.sum() == STEPS * ledger.k
    assert (np.diff(applied, axis=0) <= 0).all(), "a worker's gradients are applied without a gap"
    waiting = computed - applied.sum(axis=0)
    assert (waiting >= 0).all()
    assert waiting.sum() <= len(computed) + ledger.k - 1, "one under way a worker, and an update not yet full"


@settings(max_examples=25)
@given(runs(CANCELLING))
def test_where_computations_are_cancelled_no_gradient_is_applied_twice(run):
    ledger = ledger_of(run)
    assert set(np.unique(ledger.applied)) <= {0, 1}
    assert ledger.applied.sum() == STEPS * ledger.k
    assert (ledger.computed >= ledger.applied.sum(axis=0)).all()


@settings(max_examples=25)
@given(runs(NOT_CANCELLING + CANCELLING))
def test_the_histogram_and_the_history_count_the_gradients_that_were_applied(run):
    ledger = ledger_of(run)
    applied = int(ledger.applied.sum())
    assert sum(ledger.run.staleness.values()) == applied
    assert min(ledger.run.staleness) >= 0
    assert [record.step for record in ledger.run.history] == list(range(1, STEPS + 1))
    each = ledger.k * ledger.SAMPLES_A_GRADIENT
    assert [record.samples for record in ledger.run.history] == [each * (i + 1) for i in range(STEPS)]
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(ledger.run.history))


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("spec", VARIANTS)
def test_the_versions_that_a_worker_pulls_only_grow(spec, servers):
    strategy, receipts = listening(with_servers(spec, servers))
    pl.train(a_task(), strategy, free(4), steps=STEPS, seed=3)
    for rank, server in itertools.product(range(4), range(4, 4 + servers)):
        messages = [each.result for each in receipts[rank] if each.result.source == server]
        headers = [message.header for message in messages if message.tag == PARAMETERS]
        versions = [version for version, _ in headers]
        assert [goes_on for _, goes_on in headers] == [True] * (len(headers) - 1) + [False]
        assert versions[:-1] == sorted(versions[:-1])
        assert max(versions) <= STEPS
        if not spec.startswith("k-batch-async"):  # whose workers may pull twice between two updates
            assert len(set(versions)) == len(versions)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("spec", VARIANTS)
def test_any_number_of_servers_gives_the_same_weights_and_times(spec, servers):
    one, several = (
        pl.train(a_task(), with_servers(spec, n), free(4), steps=STEPS, seed=5) for n in (1, servers)
    )
    assert torch.equal(one.parameters, several.parameters)
    assert one.staleness == several.staleness
    assert [record.seconds for record in one.history] == [record.seconds for record in several.history]


def test_the_metric_is_that_of_all_shards_together():
    """The first server holds one shard alone, and has to ask the others for theirs whenever the run evaluates."""
    task = a_task(test=samples(10), metric=lambda output, target: -nn.functional.mse_loss(output, target))
    one, several = (
        [record.metric for record in pl.train(task, spec, free(3), steps=STEPS, evaluate_every=4).history]
        for spec in ("async", "async:servers=3")
    )
    assert one == several
    assert [metric is not None for metric in one] == [step % 4 == 0 for step in range(1, STEPS + 1)]


def test_the_bytes_at_a_server_shrink_with_the_number_of_servers():
    sent = {n: pl.train(a_task(), f"sync:servers={n}", free(4), steps=STEPS).bytes_sent for n in (1, 2, 4)}
    assert sent[1][4] / 2 == pytest.approx(sent[2][5], rel=0.1)
    assert sent[1][4] / 4 == pytest.approx(sent[4][7], rel=0.1)


@pytest.mark.parametrize("spec", VARIANTS)
def test_a_server_updates_as_often_as_the_run_has_steps_and_a_worker_never_does(spec):
    run = pl.train(a_task(), spec, free(3), steps=STEPS)
    assert count_spans(run, Kind.UPDATE, "server") == STEPS
    assert count_spans(run, Kind.UPDATE, "worker") == 0


@pytest.mark.parametrize("spec", VARIANTS)
def test_the_clock_is_the_same_without_mathematics(spec):
    real, none = (pl.train(a_task(), spec, free(3, math=math), steps=STEPS) for math in ("real", "none"))
    assert [record.seconds for record in real.history] == [record.seconds for record in none.history]
    assert real.staleness == none.staleness
    assert real.bytes_sent == none.bytes_sent


@pytest.mark.parametrize("spec", ["async:staleness_aware=yes", "k-async:k=2,staleness_aware=yes"])
def test_a_staleness_aware_server_divides_a_gradient_by_its_staleness(spec):
    """With one gradient an update each sample moves by 1/staleness of a step, so that stale ones count less."""
    plain = Ledger(spec.replace("yes", "no"), free(4), k=1, steps=STEPS, seed=2).run
    aware = Ledger(spec, free(4), k=1, steps=STEPS, seed=2).run
    k = 2 if spec.startswith("k-async") else 1
    weights = {staleness: count / max(1, staleness) / k for staleness, count in aware.staleness.items()}
    assert aware.staleness == plain.staleness
    assert plain.parameters.sum().item() == pytest.approx(STEPS)
    assert aware.parameters.sum().item() == pytest.approx(sum(weights.values()))


FAMILY = [name for name, kind in STRATEGIES.items() if issubclass(kind, ParameterServer)]


@pytest.mark.parametrize("servers", [0, -1, 65])
@pytest.mark.parametrize("name", FAMILY)
def test_a_number_of_servers_out_of_range_is_refused_at_once(name, servers):
    with refused("servers", servers, bound=has(1, 64)):
        parse(f"{name}:servers={servers}")


@pytest.mark.parametrize("servers", [1.5, "2", None])
def test_a_number_of_servers_that_is_not_whole_is_refused(servers):
    with refused("servers", servers, bound=has(1, 64)):
        Async(servers=servers)


def test_more_servers_than_parameters_are_refused():
    with refused("servers", 40, bound=has(37)):
        pl.train(a_task(), "async:servers=40", free(2), steps=1)


def test_an_unknown_parameter_is_refused_with_those_that_are_known():
    with unknown("parameter of async", "server"):
        parse("async:server=2")
