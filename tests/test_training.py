import math

import pytest
import torch
from refusals import has, raised, refused, unknown
from tasks import WORLDS, a_task, perceptron, samples, simulated
from torch import nn

import paceline as pl
from paceline.errors import TaskError
from paceline.runs.run import Progress
from paceline.strategies import STRATEGIES
from paceline.strategies.all_reduce import AllReduce
from paceline.trace import Kind


def count_evaluations(run):
    return sum(record.metric is not None for record in run.history)


def growing():
    """A metric that grows by one per step: the output of the model is its number of steps."""
    return {
        "model": lambda: nn.Linear(4, 1, bias=False).double(),
        "data": (torch.full((24, 4), 0.25, dtype=torch.float64), torch.zeros(24, 1, dtype=torch.float64)),
        "loss": lambda outputs, targets: -outputs.mean(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=4.0),
        "test": (torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)),
        "metric": lambda outputs, targets: outputs.item(),
    }


# How long a run is


@pytest.mark.parametrize(
    ("length", "batch_size", "epochs", "steps"),
    [(24, 8, 2, 6), (25, 8, 2, 8), (24, 8, 0.5, 2), (5, 64, 3, 3)],
)
def test_epochs_are_passes_over_the_data(length, batch_size, epochs, steps):
    task = a_task(data=samples(length), batch_size=batch_size)
    run = pl.train(task, "single", simulated(1), epochs=epochs)
    assert run.steps == steps
    if epochs == int(epochs):
        assert run.history[-1].samples == epochs * length


def test_a_run_is_ten_epochs_long_unless_told():
    assert pl.train(a_task(), "single", simulated(1)).steps == 30


# The metric


@pytest.mark.parametrize(("steps", "every", "expected"), [(7, None, 7), (40, None, 20), (7, 3, 3), (6, 3, 2)])
def test_the_metric_is_evaluated_at_intervals_and_at_the_end(steps, every, expected):
    run = pl.train(a_task(**growing()), "single", simulated(1), steps=steps, evaluate_every=every)
    assert count_evaluations(run) == expected
    assert run.history[-1].metric is not None


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["single", "map-reduce", "all-reduce", "sync"])
def test_the_metric_is_that_of_the_model_after_the_step(spec, world):
    run = pl.train(a_task(**growing()), spec, WORLDS[world](2), steps=3)
    first, second, third = (record.metric for record in run.history)
    assert second - first == pytest.approx(4)
    assert third - second == pytest.approx(4)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["single", "map-reduce", "all-reduce", "sync"])
def test_a_run_stops_at_the_step_after_the_one_that_reached_the_target(spec, world):
    first = pl.train(a_task(**growing()), spec, simulated(2), steps=1).metric
    task = a_task(**growing(), target=first + 7)  # four a step: reached by the third
    run = pl.train(task, spec, WORLDS[world](2), steps=50, evaluate_every=1, stop_at_target=True)
    assert run.steps == 4
    assert run.seconds_to_target == run.history[2].seconds


def test_a_target_does_not_end_a_run_that_was_not_told_to_stop():
    run = pl.train(a_task(**growing(), target=-100.0), "single", simulated(1), steps=4)
    assert run.steps == 4
    assert run.seconds_to_target == run.history[0].seconds


@pytest.mark.parametrize("world", WORLDS)
def test_time_spent_on_evaluation_does_not_count(world):
    run = pl.train(a_task(**growing()), "all-reduce", WORLDS[world](2), steps=3)
    evaluated = sum(
        span["end_s"] - span["start_s"] for spans in run.trace.spans for span in spans.of(Kind.EVALUATE)
    )
    assert run.seconds <= run.trace.seconds - evaluated


# What remains unchanged


@pytest.mark.parametrize("world", WORLDS)
def test_the_tasks_own_model_is_never_touched(world):
    model = perceptron()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = pl.train(a_task(model=model), "all-reduce", WORLDS[world](2), steps=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(run.model.state_dict()["0.weight"], before["0.weight"])
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("world", WORLDS)
def test_the_callers_chance_and_threads_are_left_as_they_were(world):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    pl.train(a_task(), "all-reduce", WORLDS[world](2), steps=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_seed_sets_the_initial_weights():
    first, same, other = (
        pl.train(
            a_task(optimizer=lambda p: torch.optim.SGD(p, lr=0)), "single", simulated(1), steps=1, seed=s
        )
        for s in (1, 1, 2)
    )
    assert torch.equal(first.parameters, same.parameters)
    assert not torch.equal(first.parameters, other.parameters)


# Progress


@pytest.mark.parametrize("world", WORLDS)
def test_progress_is_told_in_order(world):
    seen = []

    def slow_loss(outputs, targets):
        import time

        time.sleep(0.02)
        return nn.functional.mse_loss(outputs, targets)

    pl.train(a_task(loss=slow_loss), "all-reduce", WORLDS[world](2), steps=12, progress=seen.append)
    assert seen
    assert all(isinstance(progress, Progress) and progress.steps == 12 for progress in seen)
    assert [progress.step for progress in seen] == sorted(progress.step for progress in seen)
    assert all(progress.samples == 8 * progress.step for progress in seen)
    assert all(math.isfinite(progress.loss) for progress in seen)


# What is refused


def test_what_is_not_a_task_is_refused():
    with refused("task", "digits.py", bound=has("pl.Task")):
        pl.train("digits.py")


def test_what_is_not_a_cluster_is_refused():
    with refused("cluster", 4):
        pl.train(a_task(), "single", 4)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_steps_below_one_are_refused(steps):
    with refused("steps", steps, bound=has(1)):
        pl.train(a_task(), steps=steps)


@pytest.mark.parametrize("epochs", [0, -1, math.inf, math.nan, "3"])
def test_epochs_of_no_length_are_refused(epochs):
    with refused("epochs"):
        pl.train(a_task(), epochs=epochs)


def test_steps_and_epochs_together_are_refused():
    with refused("steps", 1):
        pl.train(a_task(), steps=1, epochs=1)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True])
def test_a_seed_out_of_range_is_refused(seed):
    with refused("seed", seed, bound=has(0, 4294967295)):
        pl.train(a_task(), steps=1, seed=seed)


@pytest.mark.parametrize("every", [0, -2, 1.5])
def test_an_interval_of_no_length_is_refused(every):
    with refused("evaluate_every", every):
        pl.train(a_task(), steps=1, evaluate_every=every)


def test_an_unknown_strategy_is_answered_with_the_nearest_and_all():
    with unknown("strategy", "all-redcue", nearest="all-reduce", bound=has(*STRATEGIES)):
        pl.train(a_task(), "all-redcue", steps=1)


def test_an_unknown_parameter_is_answered_with_the_nearest_and_all():
    with unknown("parameter of all-reduce", "algoritm", nearest="algorithm"):
        pl.train(a_task(), "all-reduce:algoritm=ring", steps=1)


def test_an_unknown_value_is_answered_with_the_nearest_and_all():
    with unknown("algorithm", "rign", nearest="ring"):
        pl.train(a_task(), "all-reduce:algorithm=rign", steps=1)


def test_a_strategy_may_be_given_as_an_object():
    run = pl.train(a_task(), AllReduce(algorithm="ring"), simulated(2), steps=1)
    assert run.strategy == "all-reduce:algorithm=ring"


@pytest.mark.parametrize("strategy", [None, 3, object(), AllReduce])
def test_what_is_not_a_strategy_is_refused(strategy):
    with refused("strategy", strategy):
        pl.train(a_task(), strategy, simulated(2), steps=1)


@pytest.mark.parametrize("world", WORLDS)
def test_a_model_that_cannot_be_built_shows_the_users_traceback(world):
    def broken():
        raise RuntimeError("no such weights")

    with raised(
        TaskError, failure=has("model"), traceback=has("in broken"), cause="RuntimeError: no such weights"
    ):
        pl.train(a_task(model=broken), "all-reduce", WORLDS[world](2), steps=1)


@pytest.mark.parametrize("world", WORLDS)
def test_an_optimizer_that_cannot_be_built_shows_the_users_traceback(world):
    def broken(params):
        raise RuntimeError("no such rate")

    with raised(
        TaskError, failure=has("optimizer"), traceback=has("in broken"), cause="RuntimeError: no such rate"
    ):
        pl.train(a_task(optimizer=broken), "all-reduce", WORLDS[world](2), steps=1)
