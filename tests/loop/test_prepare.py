"""A script with its own loop, on several workers: the weights of the script run alone."""

from __future__ import annotations

import json
from functools import cache, partial

import pytest
import torch
from loop.launching import launcher
from loop.scripts import weights, write_script

pytestmark = [pytest.mark.xdist_group("own loops"), pytest.mark.timeout(240)]

SYNCHRONOUS = [
    "all-reduce",
    "all-reduce:algorithm=ring",
    "map-reduce",
    "sync",
    "sync:servers=2",
    "sync:placement=worker",
    "sync:placement=all",
    "central-storage",
    "zero:stage=1",
]
ASYNCHRONOUS = [
    "k-sync:k=1",
    "k-batch-sync:k=1",
    "async",
    "async:servers=2",
    "async:placement=all",
    "k-async:k=1",
    "k-batch-async:k=1",
    "ssp",
    "hogwild",
    "decentralized",
    "decentralized:mode=async",
    "local-sgd:period=2",
    "diloco:period=2",
]
WAYS = ["", "accumulate", "clip", "schedule", "by-hand", "loaders", "sampler", "drop", "without", "adam"]
FEW = {("all-reduce", ""), ("sync", "clip"), ("sync", "schedule"), ("all-reduce", "accumulate")}
FEW |= {("all-reduce", "without"), ("map-reduce", "by-hand")}


def grid(specs, ways):
    return [
        pytest.param(spec, way, marks=[] if (spec, way) in FEW else [pytest.mark.slow])
        for spec in specs
        for way in ways
    ]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("own-loop"))


@pytest.fixture(scope="module")
def launch(script, tmp_path_factory):
    with launcher(tmp_path_factory.mktemp("launches")) as running:
        yield partial(running.run, script)


@pytest.fixture(scope="module")
def alone(launch):
    """Weights of the script run alone, by its arguments."""

    @cache
    def run(way):
        ended = launch(None, 1, way)
        assert ended.codes == [0], ended.output(0)
        return weights(ended.folder)

    return run


@pytest.mark.parametrize(("spec", "way"), grid(SYNCHRONOUS, WAYS))
def test_synchronous_strategies_give_the_weights_of_the_script_alone(spec, way, launch, alone):
    # 4 workers: batches of 8 are even, the last one of 2 and those of 3 leave empty slices; 3 workers: uneven.
    counts = [3] if (spec, way) in FEW else [1, 2, 3, 4]
    for ended in [launch(spec, workers, way) for workers in counts]:
        assert set(ended.codes) == {0}, ended.output(0)
        for name in ("after-loop", "after-run"):
            torch.testing.assert_close(weights(ended.folder, name), alone(way), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["all-reduce", *(pytest.param("sync", marks=pytest.mark.slow),)])
def test_empty_slices_have_no_weight(spec, launch, alone):
    ended = launch(spec, 4, "sampler")
    assert set(ended.codes) == {0}, ended.output(0)
    torch.testing.assert_close(weights(ended.folder), alone("sampler"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, marks=[] if spec in ("async", "decentralized:mode=async") else [pytest.mark.slow])
        for spec in ASYNCHRONOUS
    ],
)
def test_other_strategies_train_and_count(spec, launch):
    counts = [2] if spec in ("async", "decentralized:mode=async") else [1, 2, 3, 4]
    for workers in counts:
        ended = launch(spec, workers, "gather")
        assert set(ended.codes) == {0}, ended.output(0)
        facts = json.loads((ended.folder / "run.json").read_text())
        assert facts["lost"] == []
        gradients = 14 * workers  # 2 epochs of 7 batches on each worker
        if spec.startswith(("async", "ssp")):
            assert facts["steps"] == facts["staleness"] == gradients  # each gradient is applied once
        elif spec.startswith(("local", "diloco", "k-sync")) or spec == "decentralized":
            assert facts["steps"] == 14
        else:
            assert 1 <= facts["steps"] <= gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [None, "all-reduce", "all-reduce:algorithm=ring", "zero:stage=1", "local-sgd:period=2"]
)
def test_a_resumed_script_gives_the_weights_of_one_that_was_not_stopped(spec, script, tmp_path):
    with launcher(tmp_path) as running:
        expected = running.run(script, spec, 2)
        for words in (["keep", "half"], ["keep"]):
            ended = running.run(script, spec, 2, *words)
            assert set(ended.codes) == {0}, ended.output(0)
        found = weights(ended.folder, "after-run")
    torch.testing.assert_close(found, weights(expected.folder, "after-run"), rtol=0, atol=1e-12)


def test_a_script_started_alone_runs_as_one_worker(alone):
    assert alone("").isfinite().all()


def test_workers_gather_values_and_evaluate_on_the_first(launch):
    ended = launch("all-reduce", 3, "gather")
    assert ended.codes == [0, 0, 0], ended.output(1)
    assert ended.output(0).count("loss") == 2
    assert "loss" not in ended.output(1)
    facts = json.loads((ended.folder / "run.json").read_text())
    assert all(loss == loss for loss in facts["losses"])
    assert facts["spans"] == 3


REFUSED = {
    "torch-clip": "gradients",
    "iterable": "loader",
    "thaw": "requires_grad",
    "load": "optimizer.load_state_dict",
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_right_is_refused(way, launch):
    ended = launch("all-reduce", 2, way)
    assert set(ended.codes) == {1}
    assert f"ConfigurationError: {REFUSED[way]} must" in ended.output(0) + ended.output(1)


@pytest.mark.parametrize("spec", ["pipeline", "zero:stage=3", "tensor", "fedavg"])
def test_strategies_that_need_a_task_are_refused(spec):
    from refusals import refused

    from paceline.loop.prepare import check_strategy
    from paceline.strategies import parse

    with refused("strategy"):
        check_strategy(parse(spec))


@pytest.mark.parametrize("spec", ["all-reduce", pytest.param("sync", marks=pytest.mark.slow)])
def test_an_exception_on_one_rank_ends_all_and_names_the_rank(spec, launch):
    ended = launch(spec, 3, "raise")
    assert 0 not in ended.codes
    assert "LookupError: a broken sample" in ended.output(1)
    assert "WorkerError: rank 1 failed in step" in ended.output(0)


@pytest.mark.parametrize(
    "spec", ["all-reduce", *(pytest.param(s, marks=pytest.mark.slow) for s in ("sync", "map-reduce"))]
)
def test_a_loop_that_ends_early_is_an_error_in_a_synchronous_strategy(spec, launch):
    ended = launch(spec, 3, "early")
    assert ended.codes[0] == 1
    assert "EarlyEndError: the loop of rank 1 ended after 3 steps" in ended.output(0)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["async", "ssp"])
def test_a_loop_may_end_early_in_an_asynchronous_strategy(spec, launch):
    ended = launch(spec, 3, "early")
    assert set(ended.codes) == {0}, ended.output(0)
    assert json.loads((ended.folder / "run.json").read_text())["steps"] == 14 + 14 + 3


def test_a_loop_that_never_steps_is_an_error(launch):
    ended = launch("sync", 2, "never")
    assert ended.codes[:2] == [1, 1]
    assert "RunError: the loop has ended without a call of optimizer.step()" in ended.output(0)
