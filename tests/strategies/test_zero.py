"""ZeRO: messages and refusals, the same in every world."""

import pytest
import torch
from conformance.cases import one_in
from refusals import has, refused
from segmented_models import gpt_task
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.testing.checks import check_close

STEPS = 3


def wide():
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    ).double()


COUNT = sum(parameter.numel() for parameter in wide().parameters())


def elements_sent(spec, workers):
    """Bytes of each of two steps. Messages to inspect the model after the last step do not count."""
    few, many = (pl.train(a_task(model=wide), spec, simulated(workers), steps=steps) for steps in (1, 3))
    return (sum(many.bytes_sent) - sum(few.bytes_sent)) / 8 / 2


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_each_stage_sends_what_the_paper_says(workers):
    assert elements_sent("zero:stage=1", workers) == 2 * COUNT * (workers - 1)
    assert elements_sent("zero:stage=2,segments=3", workers) == 2 * COUNT * (workers - 1)
    assert elements_sent("zero:stage=3,segments=1", workers) == 2 * COUNT * (workers - 1)
    # The last segment's parameters are still there when its backward pass begins.
    assert 2.5 * COUNT < elements_sent("zero:stage=3,segments=4", workers) / (workers - 1) < 3 * COUNT


class Lars(torch.optim.Optimizer):
    """Needs whole layers: the step of each is by its norm."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=float(0.01 * p.norm() / (p.grad.norm() + 1e-9)))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_that_needs_whole_layers_gets_them(stage):
    task = a_task(optimizer=Lars, model=wide)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = pl.train(task, f"zero:stage={stage}", simulated(3), steps=STEPS)
    check_close(run.parameters, expected.parameters)


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.RMSprop])
def test_an_optimizer_that_has_a_state_from_the_first_keeps_its_own_part_of_it(optimizer):
    task = a_task(optimizer=lambda p: optimizer(p, lr=0.01), model=wide)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    check_close(pl.train(task, "zero:stage=3", simulated(3), steps=STEPS).parameters, expected.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_micro_batches_of_uneven_slices_give_the_weights_of_single(stage):
    task = gpt_task(batch_size=7)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = pl.train(task, f"zero:stage={stage},microbatches=3", simulated(4), steps=STEPS)
    check_close(run.parameters, expected.parameters)


@pytest.mark.parametrize(
    "spec", one_in(3, zip(["stage=2", "stage=3", "stage=2,segments=1", "stage=3,segments=1"]))
)
def test_a_tied_gradient_is_still_on_its_way_when_the_next_micro_batch_is_computed(spec):
    task = gpt_task(batch_size=12)  # its head is its embedding
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    slow = pl.Simulated(workers=2, compute=pl.times.Constant("1ms"), link=pl.Link("1Mbps", "10ms"))
    run = pl.train(task, f"zero:{spec},microbatches=3", slow, steps=STEPS)
    check_close(run.parameters, expected.parameters)


def test_more_workers_than_samples_and_parameters_of_a_layer():
    task = a_task(batch_size=3)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    check_close(pl.train(task, "zero:stage=3", simulated(8), steps=STEPS).parameters, expected.parameters)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_moving_average_is_followed(stage):
    task = a_task(ema=0.9)
    expected = pl.train(task, "single", simulated(1), steps=STEPS)
    run = pl.train(task, f"zero:stage={stage}", simulated(3), steps=STEPS)
    for name, tensor in expected.ema_state.items():
        torch.testing.assert_close(run.ema_state[name], tensor, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_moving_average_goes_on_from_a_checkpoint_whatever_the_order_of_parameters(workers, tmp_path):
    task = gpt_task(ema=0.9)  # its embedding is tied: stage 2 has that after all others
    expected = pl.train(task, "single", simulated(1), steps=2 * STEPS)
    kept = {"checkpoint": tmp_path, "checkpoint_every": STEPS}
    pl.train(task, "zero:stage=2", simulated(2), steps=STEPS, **kept)
    run = pl.train(task, "zero:stage=2", simulated(workers), steps=2 * STEPS, resume="must", **kept)
    for name, tensor in expected.ema_state.items():
        torch.testing.assert_close(run.ema_state[name], tensor, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("zero:stage=4", refused("stage", 4, bound=has(1, 2, 3))),
        ("zero:segments=0", refused("segments", 0, bound=has(1))),
        ("zero:stage=1,segments=2", refused("segments", 2, bound=has(1))),
        ("zero:microbatches=0", refused("microbatches", 0, bound=has(1))),
    ],
)
def test_bad_words_are_refused(spec, refusal):
    with refusal:
        pl.train(a_task(), spec, simulated(2), steps=1)


def test_a_simulation_without_mathematics_sends_and_takes_the_same():
    real, blank = (
        pl.train(
            a_task(),
            "zero:stage=3",
            pl.Simulated(workers=4, compute=pl.times.Constant("10ms"), math=math),
            steps=2,
        )
        for math in ("real", "none")
    )
    assert real.bytes_sent == blank.bytes_sent
    assert real.seconds == pytest.approx(blank.seconds)


# Memory: the table of the paper, in float32 with Adam


WIDTH, LAYERS, RANKS = 64, 8, 4


def even_layers(layers=LAYERS):
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def states_of(spec, cluster, *, model=even_layers, samples=16):
    """Of each rank: parameters, gradients and what the optimizer remembers, at its peak."""
    inputs = torch.ones(samples, WIDTH)
    task = a_task(
        model=model, data=(inputs, inputs), optimizer=lambda params: torch.optim.Adam(params, lr=1e-3)
    )
    kinds = ("parameters", "gradients", "optimizer")
    return [sum(each[kind] for kind in kinds) for each in pl.train(task, spec, cluster, steps=2).memory]


@pytest.mark.parametrize("math", ["real", "none"])
def test_each_stage_takes_the_bytes_of_the_paper(math):
    count = LAYERS * WIDTH**2
    layer = 4 * WIDTH**2
    states = {
        stage: states_of(spec, simulated(RANKS, math=math))
        for stage, spec in (
            (1, "zero:stage=1"),
            (2, f"zero:stage=2,segments={LAYERS}"),
            (3, f"zero:stage=3,segments={LAYERS}"),
        )
    }
    assert states[1] == [8 * count + 8 * count // RANKS] * RANKS
    # The gradient of one layer is made while that of another is summed.
    assert states[2] == [4 * count + 12 * count // RANKS + 2 * layer] * RANKS
    # The parameters and the gradient of one layer, and of another one of them: it goes, or it comes.
    assert states[3] == [16 * count // RANKS + 3 * layer] * RANKS


def bound_of(layers):
    """Maximum memory of a rank in stage 3: its shard of everything, the parameters of two layers, and 15 % more."""
    return 1.15 * (16 * layers * WIDTH**2 // RANKS + 2 * 4 * WIDTH**2)


@pytest.mark.parametrize("math", ["real", "none"])
@pytest.mark.parametrize("link", [pl.Link.ideal(), pl.Link("10Mbps", "1ms")], ids=["ideal", "slow"])
@pytest.mark.parametrize("layers", [2, 4, 5, LAYERS])
def test_a_rank_that_sheds_holds_little_more_than_its_part_and_two_segments(layers, link, math):
    cluster = pl.Simulated(workers=RANKS, compute=pl.times.Constant("10ms"), link=link, math=math)
    spec = f"zero:stage=3,segments={layers},microbatches=2"
    states = states_of(spec, cluster, model=lambda: even_layers(layers))
    assert max(states) <= bound_of(layers)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["tcp", "shared-memory"])
def test_so_it_does_in_processes(link):
    cluster = pl.Local(workers=RANKS, link=link, threads=1)
    assert max(states_of(f"zero:stage=3,segments={LAYERS}", cluster)) <= bound_of(LAYERS)
