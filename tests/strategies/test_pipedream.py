"""`pipeline:order=pipedream` and `pipedream-2bw`: delayed updates of each stage, versions, staleness and no bubble."""

import dataclasses
from collections import Counter
from itertools import chain, pairwise

import pytest
import torch
from conformance.cases import one_in
from refusals import has, refused
from segmented_models import gpt_task, task_of
from tasks import WORLDS, a_task, numbers, simulated
from torch import nn
from torch.func import functional_call

import paceline as pl
from paceline.schedules.pipeline import CONTINUOUS
from paceline.strategies import parse
from paceline.testing.checks import check_close

PIPEDREAM, TWO_VERSIONS = "pipeline:order=pipedream", "pipeline:order=pipedream-2bw,microbatches=4"
ORDERS = {PIPEDREAM: "pipedream", TWO_VERSIONS: "pipedream-2bw"}
WAYS = {**WORLDS, "without mathematics": lambda workers: simulated(workers, math="none")}
STEPS = 7


def delay_of(spec, stage, stages):
    """TRUTH: p - 1 - s updates with PipeDream, one everywhere with PipeDream-2BW."""
    return stages - 1 - stage if spec == PIPEDREAM else min(1, stages - 1)


# A product of three numbers, one for each stage: y = c b a x.

X, Y, RATE = [1.0, -2.0, 0.5, 3.0], [0.5, 1.0, -1.0, 2.0], 0.02


def three_numbers():
    def model():
        made = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(3))).double()
        for layer, value in zip(made, (0.5, 1.5, -0.8), strict=True):
            nn.init.constant_(layer.weight, value)
        return made

    column = [torch.tensor(values, dtype=torch.float64)[:, None] for values in (X, Y)]
    optimizer = lambda params: torch.optim.SGD(params, lr=RATE)  # noqa: E731
    return a_task(model=model, data=tuple(column), batch_size=4, shuffle=False, optimizer=optimizer)


def by_hand(spec, steps):
    """The three numbers after each step, by delayed gradient descent in plain arithmetic."""
    course = [(0.5, 1.5, -0.8)]
    for step in range(steps):
        a, b, c = (course[max(0, step - delay_of(spec, stage, 3))][stage] for stage in range(3))
        slope = sum(2 * (c * b * a * x - y) * x for x, y in zip(X, Y, strict=True)) / len(X)
        gradient = (slope * c * b, slope * c * a, slope * b * a)
        course.append(tuple(w - RATE * g for w, g in zip(course[-1], gradient, strict=True)))
    return course


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ORDERS)
def test_a_product_of_three_numbers_follows_delayed_descent_by_hand(spec, world):
    course = by_hand(spec, STEPS)
    for steps in (1, 3, STEPS) if world == "simulated" else (STEPS,):
        run = pl.train(three_numbers(), spec, WORLDS[world](3), steps=steps)
        assert run.parameters.tolist() == pytest.approx(course[steps], rel=1e-12)


def test_the_course_by_hand_depends_on_the_delays():
    ends = [by_hand(spec, STEPS)[-1] for spec in ORDERS]
    single = pl.train(three_numbers(), "single", simulated(1), steps=STEPS).parameters.tolist()
    assert all(abs(one[0] - other[0]) > 1e-4 for one, other in [ends, (ends[0], single), (ends[1], single)])


# Any model: a gradient is that of the loss at weights of different age.


def reference(task, spec, stages, steps):
    """Train one copy of the model. `stages` has the names of each stage's parameters."""
    module = task.build_model(0)
    optimizer = task.build_optimizer(module)
    schedule = task.build_schedule(optimizer)
    inputs, targets = task.data
    past = []
    for step in range(steps):
        past.append({name: each.detach().clone() for name, each in module.named_parameters()})
        used = {}
        for stage, names in enumerate(stages):
            version = past[max(0, step - delay_of(spec, stage, len(stages)))]
            used |= {name: version[name].requires_grad_() for name in names}
        rows = (torch.arange(task.batch_size) + step * task.batch_size) % len(inputs)
        loss = task.loss(functional_call(module, used, (inputs[rows],)), targets[rows])
        for (_, own), gradient in zip(
            module.named_parameters(), torch.autograd.grad(loss, [used[n] for n in past[-1]]), strict=True
        ):
            own.grad = gradient
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), task.clip_norm)
        optimizer.step()
        schedule.step()
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()])


def deep(**changes):
    def model():
        torch.manual_seed(5)
        widths = [4, 6, 5, 6, 2]
        layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
        return nn.Sequential(*layers).double()

    given = {
        "model": model,
        "optimizer": lambda params: torch.optim.AdamW(params, lr=0.01),
        "schedule": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.9),
        "shuffle": False,
    }
    return a_task(**given | changes)


NAMES = [[f"{layer}.0.weight", f"{layer}.0.bias"] for layer in range(4)]


@pytest.mark.parametrize(
    ("spec", "world", "stages"), one_in(3, [(s, w, p) for p in (2, 4) for s in ORDERS for w in WORLDS])
)
def test_every_optimizer_follows_gradients_at_weights_of_different_age(spec, world, stages):
    task = deep(clip_norm=0.3)
    cuts, size = ("cuts=2", 2) if stages == 2 else ("cuts=1+2+3", 1)
    names = [list(chain.from_iterable(NAMES[first : first + size])) for first in range(0, 4, size)]
    expected = reference(task, spec, names, STEPS)
    spec_with_cuts = f"{spec},{cuts}"
    run = pl.train(task, spec_with_cuts, WORLDS[world](stages), steps=STEPS)
    check_close(run.parameters, expected)


@pytest.mark.parametrize("spec", ORDERS)
def test_one_stage_gives_the_weights_of_single(spec):
    run, expected = (pl.train(deep(), each, simulated(1), steps=STEPS) for each in (spec, "single"))
    check_close(run.parameters, expected.parameters)
    assert run.staleness == {0: STEPS}


CASES = {
    "dropout and tied weights": lambda: gpt_task(dropout=0.2, clip_norm=0.1),
    "recomputed": lambda: gpt_task(dropout=0.2, recompute=True),
    "BatchNorm": lambda: task_of("resnet"),
    "moving average": lambda: deep(ema=0.7),
    "bf16": lambda: dataclasses.replace(
        deep(
            model=lambda: deep().build_model(0).float(), data=(numbers(24, 4).float(), numbers(24, 2).float())
        ),
        precision="bf16",
    ),
}


@pytest.mark.parametrize(("spec", "case"), one_in(3, [(s, c) for c in CASES for s in ORDERS]))
def test_processes_and_simulation_give_the_same_bits(spec, case):
    runs = [pl.train(CASES[case](), spec, WORLDS[world](3), steps=5) for world in WORLDS]
    assert all(torch.equal(tensor, runs[1].state[name]) for name, tensor in runs[0].state.items())
    assert [record.loss for record in runs[0].history] == [record.loss for record in runs[1].history]
    assert runs[0].staleness == runs[1].staleness


@pytest.mark.parametrize("spec", ORDERS)
def test_an_emulated_slow_stage_changes_no_bit(spec):
    plain, slow = (pl.train(deep(), spec, simulated(3, **how), steps=5) for how in ({}, {"slow": {1: 4.0}}))
    assert torch.equal(plain.parameters, slow.parameters)
    assert slow.seconds > plain.seconds


# Staleness, versions, bubble


@pytest.mark.parametrize("spec", ORDERS)
@pytest.mark.parametrize("p", [2, 3, 4])
def test_staleness_is_that_of_the_stage_once_the_pipeline_is_full(spec, p):
    run = pl.train(deep(), spec, simulated(p, math="none"), steps=20)
    expected = Counter(min(step, delay_of(spec, stage, p)) for stage in range(p) for step in range(20))
    assert run.staleness == expected
    order = CONTINUOUS[ORDERS[spec]]
    assert [order.staleness(stage, p) for stage in range(p)] == [delay_of(spec, s, p) for s in range(p)]


def equal_layers(p, batch=8):
    def model():
        return nn.Sequential(*(nn.Linear(16, 16) for _ in range(p)))

    adam = lambda params: torch.optim.Adam(params, lr=0.01)  # noqa: E731
    data = (numbers(2 * batch, 16).float(), numbers(2 * batch, 16, seed=1).float())
    return a_task(model=model, data=data, batch_size=batch, optimizer=adam)


@pytest.mark.parametrize(("spec", "way"), one_in(2, [(s, w) for w in WAYS for s in ORDERS]))
def test_a_stage_stores_p_minus_s_versions_or_two(spec, way):
    p, one = 4, 4 * (16 * 16 + 16)
    memory = pl.train(equal_layers(p), spec, WAYS[way](p), steps=6).memory
    versions = [p - stage for stage in range(p)] if spec == PIPEDREAM else [2] * p
    assert [each["parameters"] for each in memory] == [count * one for count in versions]
    assert [each["gradients"] for each in memory] == [one] * p
    assert [each["optimizer"] for each in memory] == [2 * one] * p
    order = CONTINUOUS[ORDERS[spec]]
    assert [order.versions(stage, p) for stage in range(p)] == versions


@pytest.mark.parametrize("spec", ORDERS)
def test_a_stage_holds_the_activations_of_p_minus_s_micro_batches(spec):
    p = 4
    held = [each["activations"] for each in pl.train(equal_layers(p), spec, simulated(p), steps=9).memory]
    count = 1 if spec == PIPEDREAM else 4
    one = pl.train(
        equal_layers(p, batch=8 // count), "pipeline:microbatches=1,order=gpipe", simulated(p), steps=2
    ).memory
    assert held == [(p - stage) * each["activations"] for stage, each in enumerate(one)]


@pytest.mark.parametrize(("spec", "m"), [(PIPEDREAM, 1), (TWO_VERSIONS, 4)])
def test_there_is_no_bubble_between_steps(spec, m):
    p, steps, passes_s = 4, 30, 0.03
    cluster = pl.Simulated(
        workers=p, compute=pl.times.Phases("10ms", "10ms", "10ms"), link=pl.Link.ideal(), math="none"
    )
    run = pl.train(equal_layers(p), spec, cluster, steps=steps)
    ends_s = [record.seconds for record in run.history]
    assert ends_s[-1] == pytest.approx((m * steps + p - 1) * passes_s), "filled and drained once"
    assert run.trace.bubble == pytest.approx((p - 1) / (m * steps + p - 1))
    gaps_s = [b - a for a, b in zip(ends_s[p:-p], ends_s[p + 1 : -p], strict=False)]
    assert gaps_s == pytest.approx([m * passes_s] * len(gaps_s))


@pytest.mark.parametrize("spec", ORDERS)
def test_a_prediction_is_a_simulated_step_in_the_steady_state(spec):
    cluster = pl.Simulated(workers=4, device=pl.devices.A100, link=pl.Link("10Gbps", "20us"), math="none")
    task = equal_layers(8)
    predicted, run = pl.predict(task, spec, cluster), pl.train(task, spec, cluster, steps=30)
    ends_s = [record.seconds for record in run.history]
    assert predicted.step_seconds == pytest.approx((ends_s[-5] - ends_s[5]) / 20, rel=0.01)
    assert predicted.memory_bytes == max(each["total"] for each in run.memory)
    flushed = pl.predict(task, "pipeline:microbatches=4", cluster)
    assert predicted.step_seconds / (1 if spec == TWO_VERSIONS else 0.25) < flushed.step_seconds * 4


# Generations, targets, refusals


@pytest.mark.parametrize(("spec", "world"), one_in(3, [(s, w) for w in WORLDS for s in ORDERS]))
def test_a_resumed_run_has_the_bits_of_one_with_the_same_checkpoints(spec, world, tmp_path):
    def train(folder, steps, **how):
        given = {"steps": steps, "checkpoint": tmp_path / folder, "checkpoint_every": 3}
        return pl.train(deep(), spec, WORLDS[world](3), **given, **how)

    whole = train("whole", 9)
    train("parted", 6)
    resumed = train("parted", 9, resume=True)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.staleness == whole.staleness
    assert [record.loss for record in resumed.history] == [record.loss for record in whole.history]


def test_a_checkpoint_drains_the_pipeline(tmp_path):
    plain = pl.train(three_numbers(), PIPEDREAM, simulated(3), steps=6)
    drained = pl.train(
        three_numbers(), PIPEDREAM, simulated(3), steps=6, checkpoint=tmp_path, checkpoint_every=1
    )
    assert plain.staleness.keys() == {0, 1, 2}
    assert drained.staleness == {0: 18}, "each step ends before the next one begins"
    expected = pl.train(three_numbers(), "single", simulated(1), steps=6)
    check_close(drained.parameters, expected.parameters)


@pytest.mark.parametrize(("spec", "world"), one_in(2, [(s, w) for w in WORLDS for s in ORDERS]))
def test_a_target_ends_the_run_for_every_stage(spec, world):
    task = deep(test=a_task().build_data(), metric="mse", target=1e9, better="lower")
    run = pl.train(task, spec, WORLDS[world](4), steps=60, stop_at_target=True, evaluate_every=2)
    assert run.steps < 60
    assert [record.step for record in run.history] == list(range(1, run.steps + 1))


def test_workers_beyond_the_layers_end_with_the_others():
    run = pl.train(equal_layers(4), PIPEDREAM, simulated(6), steps=4)
    assert run.steps == 4
    assert run.messages_sent[5] == 0


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("pipeline:order=pipedream,microbatches=2", refused("microbatches", 2, bound=has(1, "pipedream"))),
        (
            "pipeline:order=pipedream-2bw,stages=4,microbatches=3",
            refused("microbatches", 3, bound=has(4, "pipedream-2bw")),
        ),
        ("pipeline:order=pipedream,chunks=2", refused("chunks", 2, bound=has(1, "pipedream"))),
        ("hybrid:order=pipedream", refused("order", "pipedream", bound=has("1f1b"))),
        ("pipeline:order=pipedream-2bw,microbatches=0", refused("microbatches", 0, bound=has(1))),
    ],
)
def test_numbers_that_cannot_be_are_refused_at_once(spec, refusal):
    with refusal:
        parse(spec)


@pytest.mark.parametrize("world", ["simulated", pytest.param("local", marks=pytest.mark.slow)])
def test_too_few_micro_batches_for_the_stages_are_refused(world):
    with refused("microbatches", 2, bound=has(3, "pipedream-2bw")):
        pl.train(deep(), "pipeline:order=pipedream-2bw,microbatches=2", WORLDS[world](3), steps=2)


def test_a_batch_smaller_than_the_stages_is_refused():
    with refused("microbatches", 2, bound=has(3, "pipedream-2bw")):
        pl.train(deep(batch_size=2), TWO_VERSIONS, simulated(3), steps=2)


def test_a_schedule_that_waits_for_the_metric_is_refused_if_stages_run_ahead():
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    task = deep(schedule=plateau, test=a_task().build_data(), metric="mse")
    with refused("schedule", "ReduceLROnPlateau"):
        pl.train(task, PIPEDREAM, simulated(3), steps=4, evaluate_every=2)
    assert pl.train(task, TWO_VERSIONS, simulated(3), steps=4, evaluate_every=2).steps == 4


def test_the_name_pipedream_means_weight_stashing():
    assert parse("pipedream") == parse(PIPEDREAM)
