import itertools
import math

import pytest
import torch
from refusals import has, refused, unknown
from strategies.local_cases import PlainWorkers, flat, labelled, put
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.diloco import DiLoCo


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01)


def plainly(task, workers, steps, period, outer_lr, outer_momentum):
    """The outer optimizer is torch's own SGD, given the difference as its gradient."""
    plain = PlainWorkers(task, workers)
    outer = torch.nn.Parameter(plain.mean())
    optimizer = torch.optim.SGD([outer], lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
    for step in range(steps):
        plain.step(step)
        if (step + 1) % period == 0:
            outer.grad = outer.detach() - plain.mean()
            optimizer.step()
            plain.put(outer.detach())
    return plain.mean()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("outer_lr", "outer_momentum"), [(0.7, 0.9), (1.2, 0.0)])
@pytest.mark.parametrize(("workers", "period", "steps"), [(2, 3, 12), (3, 2, 7)])
def test_its_weights_are_those_of_a_plain_loop(workers, period, steps, outer_lr, outer_momentum, world):
    task = labelled(optimizer=adamw, batch_size=11)
    spec = f"diloco:period={period},outer_lr={outer_lr},outer_momentum={outer_momentum}"
    run = pl.train(task, spec, WORLDS[world](workers), steps=steps)
    expected = plainly(task, workers, steps, period, outer_lr, outer_momentum)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("period", [1, 3])
def test_without_an_outer_optimizer_it_is_local_sgd(period):
    task = labelled(optimizer=adamw)
    plain = pl.train(task, f"local-sgd:period={period}", simulated(3), steps=9)
    outer = pl.train(task, f"diloco:period={period},outer_lr=1,outer_momentum=0", simulated(3), steps=9)
    torch.testing.assert_close(outer.parameters, plain.parameters, rtol=0, atol=1e-12)
    assert outer.bytes_sent == plain.bytes_sent


def test_the_outer_momentum_makes_a_difference():
    task = labelled(optimizer=adamw)
    fast, slow = (
        pl.train(task, f"diloco:period=2,outer_momentum={momentum}", simulated(2), steps=8)
        for momentum in (0.9, 0.0)
    )
    assert not torch.allclose(fast.parameters, slow.parameters, atol=1e-6)


def streaming(task, workers, steps, *, period, fragments, delay, mix, outer_lr=0.7, outer_momentum=0.9):
    """Streaming DiLoCo as a plain loop: one torch optimizer for each fragment, and a queue of differences."""
    plain = PlainWorkers(task, workers)
    ends = itertools.accumulate(map(len, plain.mean().tensor_split(fragments)), initial=0)
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    outer = [torch.nn.Parameter(plain.mean()[part].clone()) for part in parts]
    optimizers = [
        torch.optim.SGD([each], lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
        for each in outer
    ]
    due = {}
    for step in range(1, steps + 1):
        plain.step(step - 1)
        for number, part in enumerate(parts):
            if step % period == (number + 1) * period // fragments % period:
                due[step + delay, number] = outer[number].detach() - plain.mean()[part]
            if (step, number) in due:
                outer[number].grad = due.pop((step, number))
                optimizers[number].step()
                for model in plain.models:
                    mixed = flat(model)
                    mixed[part] = mix * mixed[part] + (1 - mix) * outer[number].detach()
                    put(model, mixed)
    return plain.mean()


STREAMS = [
    {"period": 4, "fragments": 2, "delay": 0, "mix": 0.0},
    {"period": 4, "fragments": 2, "delay": 1, "mix": 0.5},
    {"period": 5, "fragments": 3, "delay": 4, "mix": 0.25},  # several exchanges are due before the first ends
    {"period": 3, "fragments": 1, "delay": 2, "mix": 0.0},
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("how", STREAMS)
def test_streaming_has_the_weights_of_a_plain_loop(how, world):
    task = labelled(optimizer=adamw, batch_size=11)
    spec = "diloco:" + ",".join(f"{key}={value}" for key, value in how.items())
    run = pl.train(task, spec, WORLDS[world](2), steps=14)
    expected = streaming(task, 2, 14, **how)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_fragments_send_as_many_bytes_in_more_messages():
    task = labelled(optimizer=adamw)
    whole, parts = (
        pl.train(task, f"diloco:period=4,fragments={fragments},algorithm=ring", simulated(2), steps=8)
        for fragments in (1, 4)
    )
    assert sum(parts.bytes_sent) == sum(whole.bytes_sent)
    assert sum(parts.messages_sent) == 4 * sum(whole.messages_sent)


class Scalar(torch.nn.Module):
    """A model with a gradient equal to its input."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, inputs):
        return self.weight * inputs


def test_the_trajectory_of_one_parameter_is_the_one_computed_by_hand(tmp_path):
    """Worker 0 moves by -1 a step and worker 1 by -3. H = 2, delay 1, mix 1/2, outer rate 1/2, outer momentum 1/2.

    step 2: -2, -6; sent 2, 6, mean 4. step 3: -3, -9; momentum 4, outer -(4 + 2)/2 = -3; mixed -3, -6.
    step 4: -4, -9; sent 1, 6, mean 3.5. step 5: -5, -12; momentum 5.5, outer -3 - (3.5 + 2.75)/2 = -6.125;
    mixed -5.5625, -9.0625. step 6: -6.5625, -12.0625.
    """
    task = pl.Task(
        model=Scalar,
        data=(torch.tensor([[1.0], [3.0]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)),
        loss=lambda output, target: output.mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
        batch_size=2,
        shuffle=False,
    )
    spec = "diloco:period=2,delay=1,mix=0.5,outer_lr=0.5,outer_momentum=0.5"
    means = [
        pl.train(task, spec, simulated(2), steps=steps).parameters.item() for steps in (1, 2, 3, 4, 5, 6)
    ]
    assert means == [-2.0, -4.0, -4.5, -6.5, -7.3125, -9.3125]


@pytest.mark.parametrize("stop", [4, 5, 6, 7])
def test_a_checkpoint_between_a_turn_and_its_outer_step_changes_no_bit(stop, tmp_path):
    task = labelled(optimizer=adamw)
    spec = "diloco:period=5,fragments=2,delay=3,mix=0.5"
    whole = pl.train(task, spec, simulated(2), steps=12)
    pl.train(task, spec, simulated(2), steps=stop, checkpoint=tmp_path)
    resumed = pl.train(task, spec, simulated(2), steps=12, checkpoint=tmp_path, resume=True)
    assert torch.equal(resumed.parameters, whole.parameters)


def test_a_delay_hides_the_exchange_behind_local_steps():
    slow = {"link": pl.Link(bandwidth="1Mbps"), "compute": pl.times.Constant("1ms")}
    waits, hidden = (
        pl.train(labelled(), f"diloco:period=8,delay={delay}", simulated(2, **slow), steps=24).seconds
        for delay in (0, 7)
    )
    assert hidden < waits


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"period": 0}, refused("period", 0, bound=has(1))),
        ({"outer_lr": 0.0}, refused("outer_lr", 0.0)),
        ({"outer_lr": math.nan}, refused("outer_lr", has("nan"), bound=has(0))),
        ({"outer_momentum": 1.0}, refused("outer_momentum", 1.0)),
        ({"outer_momentum": -0.1}, refused("outer_momentum", -0.1)),
        ({"fragments": 0}, refused("fragments", 0, bound=has(1))),
        ({"period": 4, "fragments": 5}, refused("fragments", 5, bound=has(4))),
        ({"period": 4, "delay": 4}, refused("delay", 4, bound=has(3))),
        ({"delay": -1}, refused("delay", -1, bound=has(0))),
        ({"mix": 1.0}, refused("mix", 1.0)),
        ({"mix": -0.5}, refused("mix", -0.5)),
        ({"algorithm": "rong"}, unknown("algorithm", "rong", nearest="ring")),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        DiLoCo(**changes)


def test_more_fragments_than_parameters_are_refused():
    with refused("fragments", 100, bound=has(43)):
        pl.train(labelled(), "diloco:period=100,fragments=100", simulated(2), steps=1)
