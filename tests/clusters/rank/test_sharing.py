"""Evaluations that workers share: they equal an evaluation by one worker bit for bit, and use each test sample
once."""

import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from conformance.cases import one_in
from refusals import has, raised
from tasks import a_task, numbers, samples, simulated
from torch import nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.errors import PeerLost, WorkerError
from paceline.strategies.all_reduce import AllReduce
from paceline.trace import Kind

METRICS = {"loss": "loss", "mae": "mae", "rmse": "rmse"}
CLUSTERS = {
    f"{link}-{workers}": pl.Local(workers=workers, threads=1, link=link)
    for link in ("shared-memory", "tcp")
    for workers in (2, 3)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone(AllReduce):
    """All-reduce in which the reporter evaluates alone."""

    in_step: ClassVar[bool] = False


class Noted(Dataset):
    """Test samples. Each process writes down which of them it fetched."""

    def __init__(self, folder, length=50):
        self.folder, self.tensors, self.length = folder, samples(length), length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        with open(self.folder / str(os.getpid()), "a") as file:
            file.write(f"{number}\n")
        return tuple(tensor[number] for tensor in self.tensors)

    def by_process(self):
        return [Counter(map(int, path.read_text().split())) for path in self.folder.iterdir()]


def evaluated(run):
    return [(r.step, r.metric, r.extra) for r in run.history if r.metric is not None]


def train(task, strategy, cluster, **changes):
    return pl.train(task, strategy, cluster, **({"steps": 5, "evaluate_every": 2} | changes))


def assert_same_as_alone(task, cluster, **changes):
    shared, alone = (train(task, strategy, cluster, **changes) for strategy in (AllReduce(), Alone()))
    assert evaluated(shared) == evaluated(alone)
    assert len(evaluated(shared)) == 3
    assert torch.equal(shared.parameters, alone.parameters)
    assert (shared.bytes_sent, shared.messages_sent) == (alone.bytes_sent, alone.messages_sent)
    return shared


# The same bits


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_metrics_messages_and_bytes_are_those_of_an_evaluation_alone(cluster):
    task = a_task(test=samples(50), metric=METRICS, test_batch_size=7)  # 8 batches, of 6 and 7
    run = assert_same_as_alone(task, cluster)
    assert evaluated(run) == evaluated(train(task, "all-reduce", simulated(cluster.workers)))


def test_accuracy_and_perplexity_are_those_of_an_evaluation_alone():
    targets = torch.arange(50) % 2
    task = a_task(
        data=(numbers(50, 4), targets),
        loss=nn.functional.cross_entropy,
        test=(numbers(50, 4), targets),
        metric={"accuracy": "accuracy", "perplexity": "perplexity"},
        test_batch_size=9,
    )
    assert_same_as_alone(task, CLUSTERS["shared-memory-3"])


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_statistics_of_batch_norm_are_the_reporters(cluster):
    def model():
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()

    assert_same_as_alone(a_task(model=model, test=samples(50), metric=METRICS, test_batch_size=7), cluster)


def test_what_is_drawn_in_an_evaluation_is_the_same_whoever_looks_at_a_batch(tmp_path):
    class Noisy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs + torch.randn_like(inputs))

    class Drawn(Noted):
        def __getitem__(self, number):
            inputs, targets = super().__getitem__(number)
            return inputs + torch.randn(()), targets

    for test in (samples(50), Drawn(tmp_path)):
        task = a_task(model=lambda: Noisy(4, 2).double(), test=test, metric="mse", test_batch_size=7)
        assert_same_as_alone(task, CLUSTERS["shared-memory-3"])


def test_an_evaluation_shared_by_more_workers_than_test_batches_is_the_same():
    task = a_task(test=samples(14), metric=METRICS, test_batch_size=7)
    assert_same_as_alone(task, CLUSTERS["shared-memory-3"])


# Division of the test batches


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_every_test_sample_is_looked_at_once_an_evaluation_and_all_workers_look(cluster, tmp_path):
    test = Noted(tmp_path)
    train(a_task(test=test, metric="mse", test_batch_size=7), "all-reduce", cluster)
    seen = test.by_process()
    assert len(seen) == cluster.workers
    assert sum(seen, Counter()) == dict.fromkeys(range(50), 3)
    # Whole batches: the first of 7 samples, or of 6, and so on.
    assert sorted(map(len, seen), reverse=True)[0] <= 7 * -(-8 // cluster.workers)


class Mean:
    def __init__(self):
        self.values = []

    def update(self, outputs, targets):
        self.values.append(float(outputs.mean()))

    def compute(self):
        return sum(self.values)


ALONE = {
    "an object": {"metric": Mean},
    "an object beside a name": {"metric": {"mse": "mse", "mean": Mean()}},
    "a function": {"metric": lambda outputs, targets: float(outputs.mean())},
    "a moving average": {"metric": "mse", "ema": 0.9},
    "one batch": {"metric": "mse", "test_batch_size": 50},
}


@pytest.mark.parametrize("changes", ALONE.values(), ids=ALONE)
def test_one_worker_looks_at_all_samples_where_parts_cannot_be_put_together(changes, tmp_path):
    test = Noted(tmp_path)
    task = a_task(**({"test": test, "test_batch_size": 7} | changes))
    train(task, "all-reduce", pl.Local(workers=2, threads=1))
    assert test.by_process() == [dict.fromkeys(range(50), 3)]


@pytest.mark.parametrize(
    "strategy", one_in(4, [(each,) for each in ("map-reduce", "sync", "local-sgd", "single")])
)
def test_workers_that_do_not_hold_the_runs_model_do_not_look(strategy, tmp_path):
    test = Noted(tmp_path)
    train(
        a_task(test=test, metric="mse", test_batch_size=7), strategy, pl.Local(workers=2, threads=1), steps=4
    )
    assert test.by_process() == [dict.fromkeys(range(50), 2)]


@pytest.mark.slow
def test_emulated_machines_do_not_wait_for_each_other_to_evaluate(tmp_path):
    test = Noted(tmp_path)
    cluster = pl.Local(workers=2, threads=1, compute=pl.times.Constant(0.01))
    train(a_task(test=test, metric="mse", test_batch_size=7), "all-reduce", cluster)
    assert test.by_process() == [dict.fromkeys(range(50), 3)]


# Interaction with the run


def test_it_is_off_the_clock_and_every_worker_says_so():
    task = a_task(test=samples(50), metric="mse", test_batch_size=7)
    run = train(task, "all-reduce", CLUSTERS["shared-memory-3"])
    for spans in run.trace.spans:
        assert set(spans.of(Kind.EVALUATE)["step"].tolist()) == {1, 3, 4}
    spans = run.trace.spans[0]
    evaluations = spans.of(Kind.EVALUATE)
    left_out_s = sum(evaluations["end_s"] - evaluations["start_s"])
    assert run.history[-1].seconds <= spans.array["end_s"].max() - left_out_s


def test_all_ranks_end_at_the_step_after_the_one_that_reached_the_target():
    task = a_task(test=samples(50), metric="mse", target=0.9, better="lower", test_batch_size=7)
    runs = [
        pl.train(task, strategy, cluster, steps=40, evaluate_every=2, stop_at_target=True)
        for strategy in (AllReduce(), Alone())
        for cluster in (CLUSTERS["shared-memory-3"], CLUSTERS["tcp-3"])
    ]
    assert {run.steps for run in runs} == {runs[0].steps}
    assert runs[0].steps < 40
    assert all(run.reached_target and torch.equal(run.parameters, runs[0].parameters) for run in runs)


@pytest.mark.slow
def test_schedules_and_callbacks_hear_of_the_metric_as_ever():
    class Watcher:
        wants_state = True

        def __init__(self):
            self.seen = []

        def on_evaluate(self, record, state):
            self.seen.append((record.step, record.metric, [tensor.sum().item() for tensor in state.values()]))
            return pl.STOP if record.step >= 6 else None

    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)

    task = a_task(test=samples(50), metric="mse", test_batch_size=7, schedule=plateau)
    seen = []
    for strategy in (AllReduce(), Alone()):
        watcher = Watcher()
        run = train(task, strategy, CLUSTERS["shared-memory-3"], steps=20, callbacks=[watcher])
        seen.append((watcher.seen, run.steps, run.parameters.tolist()))
    assert seen[0] == seen[1]
    assert seen[0][1] == 7


@pytest.mark.slow
def test_a_run_that_is_kept_and_goes_on_shares_them_too(tmp_path):
    task = a_task(test=samples(50), metric=METRICS, test_batch_size=7)
    cluster, how = CLUSTERS["shared-memory-3"], {"checkpoint": tmp_path, "checkpoint_every": 3}
    whole = train(task, "all-reduce", cluster, steps=10)
    train(task, "all-reduce", cluster, steps=6, **how)
    gone_on = train(task, "all-reduce", cluster, steps=10, resume=True, **how)
    assert evaluated(gone_on) == evaluated(whole)


@pytest.mark.parametrize("link", ["shared-memory", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_rank_that_dies_in_an_evaluation_ends_the_run_with_its_name(link, tmp_path):
    class Deadly(Noted):
        def __getitem__(self, number):
            if number == 8:  # in the second batch, which the second worker evaluates
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(number)

    task = a_task(test=Deadly(tmp_path), metric="mse", test_batch_size=7)
    with raised(PeerLost, rank=1):
        train(task, "all-reduce", pl.Local(workers=3, threads=1, link=link))


def test_an_error_of_one_workers_part_is_the_runs(tmp_path):
    class Broken(Noted):
        def __getitem__(self, number):
            if number == 8:
                raise ValueError("sample 8 is broken")
            return super().__getitem__(number)

    task = a_task(test=Broken(tmp_path), metric="mse", test_batch_size=7)
    with raised(WorkerError, traceback=has("sample 8 is broken")):
        train(task, "all-reduce", CLUSTERS["shared-memory-3"])
