"""`pipeline` on models with several layers: every order gives the weights of `single`, in every world."""

import dataclasses

import pytest
import torch
from conformance.cases import one_in
from deaths import deadly_once
from refusals import has, raised, refused, unknown
from segmented_models import gpt_task, task_of
from tasks import WORLDS, a_task, simulated
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import paceline as pl
from paceline.errors import PeerLost
from paceline.schedules.pipeline import pipeline_order
from paceline.strategies import parse
from paceline.testing.checks import check_close
from paceline.testing.pipeline_timing import activations
from paceline.trace import Kind

ORDERS = [
    "order=gpipe,microbatches=4",
    "order=1f1b,microbatches=4",
    "order=interleaved,chunks=2,microbatches=4",
    "order=zb-h1,microbatches=4",
    "order=zb-h2,microbatches=4",
]


def one_of_five(orders):
    """The last for `make test`, the others for `make test-all`."""
    return [*(pytest.param(order, marks=pytest.mark.slow) for order in orders[:-1]), orders[-1]]


def trained(task, spec, cluster, steps=4):
    return pl.train(task, spec, cluster, steps=steps)


def adam(params):
    return torch.optim.Adam(params, lr=0.01, weight_decay=0.01)


def check_weights(task, order, workers):
    expected = trained(task, "single", simulated(1))
    run = trained(task, f"pipeline:{order}", simulated(workers))
    check_close(run.parameters, expected.parameters)
    losses = [record.loss for record in run.history]
    assert losses == pytest.approx([record.loss for record in expected.history], rel=1e-12)


UPDATES = {"clip_norm": 0.05, "schedule": lambda made: LambdaLR(made, lambda step: 0.7**step)}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_gives_the_weights_of_single(order, workers):
    check_weights(task_of("perceptron", optimizer=adam, **UPDATES), order, workers)


@pytest.mark.parametrize("order", one_in(5, zip(ORDERS)))
def test_a_model_with_residuals_and_tied_weights_gives_the_weights_of_single(order):
    check_weights(gpt_task(optimizer=adam, **UPDATES), order, 3)


# Not with Adam: the gradients of the keys' biases are only rounding errors, but Adam takes full steps with them.
@pytest.mark.slow
@pytest.mark.parametrize("order", one_of_five(ORDERS))
def test_torchs_own_transformer_gives_the_weights_of_single(order):
    check_weights(task_of("encoder", **UPDATES), order, 3)


@pytest.mark.slow  # the conformance suite has smaller models
@pytest.mark.parametrize("order", one_of_five(ORDERS))
def test_processes_and_simulation_give_the_same_bits(order):
    task = gpt_task(dropout=0.2, clip_norm=0.1)
    runs = [trained(task, f"pipeline:{order}", WORLDS[world](2)) for world in WORLDS]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert [record.loss for record in runs[0].history] == [record.loss for record in runs[1].history]


@pytest.mark.parametrize("world", ["simulated", pytest.param("local", marks=pytest.mark.slow)])
def test_dropout_is_that_of_one_worker_that_takes_the_micro_batches_in_turn(world):
    expected = trained(gpt_task(dropout=0.2, accumulate=3), "single", simulated(1))
    run = trained(gpt_task(dropout=0.2), "pipeline:microbatches=3", WORLDS[world](2))
    check_close(run.parameters, expected.parameters)


@pytest.mark.slow
def test_eight_stages_of_a_deep_model_give_the_weights_of_single():
    task = gpt_task(blocks=8, optimizer=adam)
    expected = trained(task, "single", simulated(1), steps=2)
    run = trained(task, "pipeline:microbatches=5", simulated(8), steps=2)
    check_close(run.parameters, expected.parameters)


def test_a_last_batch_of_fewer_samples_than_micro_batches_works():
    task = a_task(batch_size=7)  # of 24 samples: 7, 7, 7, 3
    expected = trained(task, "single", simulated(1), steps=8)
    run = trained(task, "pipeline:microbatches=5", simulated(2), steps=8)
    check_close(run.parameters, expected.parameters)
    assert [record.samples for record in run.history][:4] == [7, 14, 21, 24]


@pytest.mark.parametrize("world", WORLDS)
def test_the_whole_model_is_evaluated(world):
    task = a_task(test=a_task().build_data(), metric="mse")
    runs = [
        pl.train(task, spec, WORLDS[world](workers), steps=4, evaluate_every=1)
        for spec, workers in (("single", 1), ("pipeline", 2))
    ]
    metrics = [[record.metric for record in run.history] for run in runs]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-12)


def test_a_target_ends_the_run_for_every_stage():
    task = dataclasses.replace(a_task(test=a_task().build_data(), metric="mse"), target=1e9, better="lower")
    run = pl.train(task, "pipeline", pl.Local(workers=2, threads=1), steps=50, stop_at_target=True)
    assert run.steps < 50


def test_passes_are_in_the_trace_with_their_micro_batches():
    run = trained(gpt_task(), "pipeline:order=zb-h1,microbatches=4", simulated(2), steps=1)
    for rank, spans in enumerate(run.trace.spans):
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS):
            assert sorted(spans.of(kind)["peer"].tolist()) == [0, 1, 2, 3], (rank, kind)
        assert not len(spans.of(Kind.COMPUTE))


def test_each_rank_follows_its_order():
    run = trained(gpt_task(), "pipeline:order=1f1b,microbatches=4", simulated(3), steps=1)
    letters = {Kind.FORWARD: "F", Kind.BACKWARD: "BW"}
    for spans, actions in zip(run.trace.spans, pipeline_order("1f1b", 3, 4), strict=True):
        array = spans.of(Kind.FORWARD, Kind.BACKWARD)
        done = [f"{letters[Kind(int(span['kind']))]}{span['peer']}" for span in array]
        assert done == [str(action) for action in actions]


def test_messages_are_two_for_each_cut_and_micro_batch():
    run = trained(gpt_task(), "pipeline:order=1f1b,microbatches=4", simulated(3), steps=2)
    # Tied weights: one ring of two ranks a step. At the end the first rank collects the parameters of the others.
    # It requests them when all are ready.
    passes, tied, ready, shown = 2 * 4, 2 * 2, 1, 1
    assert run.messages_sent[1] == 2 * passes + ready + shown
    assert run.messages_sent[0] == passes + tied + 2


def test_looking_at_the_model_takes_no_time_of_the_run():
    task = pl.Task(
        model=lambda: torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))),
        data=(torch.zeros(8, 64), torch.zeros(8, 64)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
    )
    # To send the parameters of a stage takes 27 ms, those of all stages five times a step.
    cluster = pl.Simulated(workers=3, compute=pl.times.Constant(0.003), link=pl.Link("10Mbps", "1us"))
    ends_s = [
        record.seconds for record in pl.train(task, "pipeline:microbatches=4", cluster, steps=3).history
    ]
    assert ends_s[2] - ends_s[1] == pytest.approx(ends_s[1] - ends_s[0], rel=0.05)


@pytest.mark.slow
def test_a_slow_stage_slows_the_pipeline_and_changes_no_bit():
    task = gpt_task()
    plain, slow = (trained(task, "pipeline", simulated(3, **changes)) for changes in ({}, {"slow": {1: 3.0}}))
    assert slow.seconds > 1.5 * plain.seconds
    assert torch.equal(slow.parameters, plain.parameters)


# A trace counts some operations otherwise where there is no data: attention, for one.
@pytest.mark.parametrize(
    ("kind", "within"), [("perceptron", 1e-9), pytest.param("gpt", 0.005, marks=pytest.mark.slow)]
)
def test_without_mathematics_it_takes_as_long(kind, within):
    real, none = (
        trained(task_of(kind), "pipeline:microbatches=4", simulated(3, math=math))
        for math in ("real", "none")
    )
    assert none.seconds == pytest.approx(real.seconds, rel=within)


def test_workers_beyond_the_layers_hold_nothing():
    run = trained(a_task(), "pipeline", simulated(4))
    assert run.messages_sent[3] == 0
    kinds = {Kind(kind) for kind in run.trace.spans[3].array["kind"].tolist()}
    assert kinds <= {Kind.RECEIVE, Kind.WAIT}, "it keeps step with the others"


def test_cuts_are_given_by_the_names_of_layers():
    run = trained(gpt_task(), "pipeline:cuts=blocks.1+norm", simulated(3), steps=1)
    check_close(run.parameters, trained(gpt_task(), "single", simulated(1), steps=1).parameters)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("pipeline:stages=0", refused("stages", 0, bound=has(1))),
        ("pipeline:microbatches=0", refused("microbatches", 0, bound=has(1))),
        ("pipeline:chunks=2", refused("chunks", 2, bound=has(1, "1f1b"))),
        ("pipeline:order=interleaved", refused("chunks", 1, bound=has(2))),
    ],
)
def test_numbers_that_cannot_be_are_refused_at_once(spec, refusal):
    with refusal:
        parse(spec)


def test_an_order_that_is_not_known_is_refused_with_the_nearest():
    with unknown("order", "gpip", nearest="gpipe"):
        parse("pipeline:order=gpip")


def test_more_stages_than_workers_are_refused():
    with refused("stages", 3, bound=has(2)):
        pl.train(a_task(), "pipeline:stages=3", simulated(2), steps=1)


@pytest.mark.parametrize("world", WORLDS)
def test_more_stages_than_layers_are_refused_with_both_numbers(world):
    with refused("stages x chunks", 4, bound=has(1, 3)):
        pl.train(a_task(), "pipeline:stages=4", WORLDS[world](4), steps=1)


def test_fewer_stages_than_workers_leave_the_others_out():
    run = pl.train(gpt_task(), "pipeline:stages=2", simulated(4), steps=1)
    assert len(run.messages_sent) == 2


@pytest.mark.parametrize("world", WORLDS)
def test_a_moving_average_is_that_of_the_whole_model(world):
    runs = [
        trained(a_task(ema=0.7), spec, WORLDS[world](workers))
        for spec, workers in (("single", 1), ("pipeline", 2))
    ]
    for name, tensor in runs[0].ema_state.items():
        torch.testing.assert_close(runs[1].ema_state[name], tensor, rtol=0, atol=1e-12)


def test_a_killed_stage_ends_the_run():
    faults = (pl.faults.Kill(1, step=2),)
    with raised(PeerLost, rank=1):
        pl.train(gpt_task(), "pipeline", simulated(3, faults=faults), steps=5)


@pytest.mark.parametrize("link", ["shared-memory", "tcp"])
def test_a_stage_that_dies_ends_the_run_by_its_rank_and_its_layers(link, tmp_path):
    task = a_task(loss=deadly_once(tmp_path / "dead"))
    with raised(PeerLost, rank=1, reason=has("SIGKILL")) as caught:
        pl.train(task, "pipeline:microbatches=2,cuts=1", pl.Local(workers=2, threads=1, link=link), steps=60)
    assert caught.value.holds[1] == has("1 of 2", "1 … 2")


@pytest.mark.slow
def test_emulated_machines_give_the_bits_of_simulated_ones_and_count_their_passes():
    described = {
        "compute": pl.times.Phases("3ms", "3ms", "3ms"),
        "link": pl.Link("1Gbps", "1ms"),
        "threads": 1,
    }
    spec = "pipeline:order=zb-h1,microbatches=4"
    real, virtual = (
        trained(a_task(), spec, kind(workers=2, **described)) for kind in (pl.Local, pl.Simulated)
    )
    assert torch.equal(real.parameters, virtual.parameters)
    # Each pass lasts at least as long as it was drawn to.
    for spans in real.trace.spans:
        passes = spans.of(Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS)
        assert len(passes) == 4 * 3 * 4
        assert (passes["end_s"] - passes["start_s"]).min() > 0.0029


@pytest.mark.slow
def test_cutting_the_model_is_no_part_of_the_first_step():
    run = trained(gpt_task(), "pipeline:microbatches=2", pl.Local(workers=2, threads=1))
    left_out = run.trace.spans[0].of(Kind.EVALUATE)
    assert len(left_out)
    first_s = run.trace.spans[0].of(Kind.FORWARD)["start_s"].min()
    assert left_out["start_s"].min() < first_s
    assert run.history[0].seconds < run.trace.spans[0].of(Kind.UPDATE)["end_s"][0]


def test_activations_in_flight_are_those_of_the_order():
    from paceline.model.stages import passes

    kept, most = {}, {}
    forward = passes.Passes.forward

    def counted(self, micro, *args, **more):
        made = forward(self, micro, *args, **more)
        kept[id(self)] = self
        most[id(self)] = max(most.get(id(self), 0), self.in_flight)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes.Passes, "forward", counted)
        trained(gpt_task(batch_size=8), "pipeline:order=1f1b,microbatches=6", simulated(3), steps=1)
    assert tuple(most.values()) == activations(pipeline_order("1f1b", 3, 6))


def test_a_module_without_trainable_parameters_in_a_stage_trains():
    def model():
        made = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        made[0].requires_grad_(False)
        return made

    task = a_task(model=model, clip_norm=0.1)
    run = trained(task, "pipeline:cuts=1+2", simulated(3))
    check_close(run.parameters, trained(task, "single", simulated(1)).parameters)
