"""Passes and sums of tensor groups, timed as a whole, equal single messages bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import paceline as pl
from paceline.clusters.simulated import whole_collective
from paceline.clusters.simulated.stage_timing import StageTiming
from paceline.costs.times import Times

NEAR, FAR = pl.Link("2400Gbps", "2us"), pl.Link("200Gbps", "5us")


def task(**changes: object) -> pl.Task:
    made = pl.models.GPT(2, 64, 8, 32, 64, 16, dtype=torch.bfloat16)
    return replace(made, **changes)  # type: ignore[arg-type]


def simulate(
    spec: str, *, of: pl.Task | None = None, compute: Times | None = None, **words: object
) -> pl.Run:
    device = pl.devices.A100 if compute is None else None
    cluster = pl.Simulated(math="none", device=device, compute=compute, link=FAR, **words)  # type: ignore[arg-type]
    return pl.train(of or task(), spec, cluster, steps=2)


def check_equal(monkeypatch: pytest.MonkeyPatch, spec: str, **words: object) -> None:
    monkeypatch.setattr(whole_collective, "MANY", 4)
    ours = simulate(spec, **words)
    monkeypatch.setattr(whole_collective, "MANY", 10**9)
    singly = simulate(spec, **words)
    assert [record.seconds for record in ours.history] == [record.seconds for record in singly.history]
    assert ours.bytes_sent == singly.bytes_sent
    assert ours.messages_sent == singly.messages_sent
    assert ours.memory == singly.memory
    assert ours.trace.bubble == singly.trace.bubble
    assert len(ours.trace.spans[0]) < len(singly.trace.spans[0])


HOSTS = {"hosts": 2, "inside": NEAR}
ACROSS = {"hosts": 4, "inside": NEAR}  # a tensor group has ranks of two hosts
CASES = {
    "one link": ("hybrid:pipeline=2,tensor=4,microbatches=4", {"workers": 8}),
    "hosts": ("hybrid:pipeline=2,tensor=4,microbatches=4", {"workers": 8, **HOSTS}),
    "groups across hosts": ("hybrid:pipeline=2,tensor=4,microbatches=4", {"workers": 8, **ACROSS}),
    "gpipe": ("hybrid:pipeline=2,tensor=2,microbatches=3,order=gpipe", {"workers": 4}),
    "equal stages": (
        "hybrid:pipeline=2,tensor=2,microbatches=4",  # messages of a pipeline and of a ring arrive together
        {"workers": 4, "compute": pl.times.Phases("1ms", "1ms", "1ms")},
    ),
    "a slow rank": ("hybrid:pipeline=2,tensor=4,microbatches=4", {"workers": 8, "slow": {1: 1.5}}),
    "backward in parts": ("hybrid:pipeline=2,tensor=2,microbatches=4,order=zb-h1", {"workers": 4, **HOSTS}),
    "interleaved": (
        "hybrid:pipeline=2,tensor=2,microbatches=4,order=interleaved,chunks=2",
        {"workers": 4, **HOSTS},
    ),
    "recomputed": (
        "hybrid:pipeline=2,tensor=2,microbatches=4",
        {"workers": 4, **HOSTS, "of": task(recompute=True)},
    ),
    "sequences in parts": (
        "hybrid:pipeline=2,tensor=4,microbatches=4,sequence=true",
        {"workers": 8, **HOSTS},
    ),
    "sequences across hosts": (
        "hybrid:pipeline=2,tensor=4,microbatches=4,sequence=true",
        {"workers": 8, **ACROSS},
    ),
    "sequences, a slow rank": (
        "hybrid:pipeline=2,tensor=2,microbatches=4,sequence=true",
        {"workers": 4, "slow": {1: 1.5}},
    ),
    "sequences, backward in parts": (
        "hybrid:pipeline=2,tensor=2,microbatches=4,order=zb-h1,sequence=true",
        {"workers": 4, **HOSTS},
    ),
    "sequences, interleaved": (
        "hybrid:pipeline=2,tensor=2,microbatches=4,order=interleaved,chunks=2,sequence=true",
        {"workers": 4, **HOSTS},
    ),
    "sequences, recomputed": (
        "hybrid:pipeline=2,tensor=2,microbatches=4,sequence=true",
        {"workers": 4, **HOSTS, "of": task(recompute=True)},
    ),
    "sequences, uneven micro-batches": (
        "hybrid:pipeline=2,tensor=2,microbatches=3,sequence=true",
        {"workers": 4, **HOSTS},
    ),
    "sequences, one stage": ("tensor:size=4,sequence=true", {"workers": 4}),
    "drawn": ("tensor:size=4", {"workers": 4, "compute": pl.times.Exponential(0.01)}),
}
QUICK = ("hosts", "sequences in parts")  # the others in make test-all


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_it_equals_passes_and_messages_one_by_one(name, monkeypatch):
    spec, words = CASES[name]
    check_equal(monkeypatch, spec, **words)


@pytest.mark.slow
@pytest.mark.parametrize("data", [2, 4])  # with 4 rows the rings of gradients are timed as a whole, too
def test_rows_that_share_the_batch_go_by_the_same_times(data, monkeypatch):
    words = {"workers": 4 * data, "hosts": 2 * data, "inside": NEAR}
    check_equal(monkeypatch, f"hybrid:data={data},pipeline=2,tensor=2,microbatches=2", **words)


def test_only_disturbed_stages_fall_back_to_messages(monkeypatch):
    fallen = []
    fall_back = StageTiming.fall_back
    monkeypatch.setattr(StageTiming, "fall_back", lambda stage: (fallen.append(stage), fall_back(stage)))
    delays = {"workers": 8, "delay": pl.times.Exponential(0.01)}
    check_equal(monkeypatch, "hybrid:pipeline=4,tensor=2,microbatches=8", **delays)
    assert fallen


def test_a_small_world_keeps_every_message_in_its_trace():
    run = simulate("tensor:size=2", workers=2)
    spans = run.trace.spans[1].of(pl.trace.Kind.SEND)
    assert len(spans) == run.messages_sent[1]
