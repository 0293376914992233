import dataclasses
import shutil

import pytest
import torch
from gans import a_gan
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.compiling import compiled, is_compiled, warm_up
from paceline.model.replica import Replica
from paceline.testing.checks import check_close
from paceline.testing.tasks import batch_norm_task, make_task, samples
from paceline.testing.worlds import simulated

needs_a_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
)


def test_a_plain_module_is_not_compiled():
    assert not is_compiled(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.slow
def test_of_several_models_each_is_compiled():
    made = compiled(nn.ModuleDict({"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}))
    assert isinstance(made, nn.ModuleDict)
    assert is_compiled(made["g"])
    assert is_compiled(made["d"])


@pytest.mark.slow
def test_a_compiled_module_is_known_wherever_it_is():
    assert is_compiled(torch.compile(nn.Linear(2, 2)))
    assert is_compiled(nn.Sequential(torch.compile(nn.Linear(2, 2))))
    inner = nn.Linear(2, 2)
    inner.compile()
    assert is_compiled(nn.Sequential(inner))


def test_a_plain_module_needs_no_warming_up():
    task = batch_norm_task()
    replica = Replica.of(task, task.build_model(0))
    warm_up(replica, [GlobalBatches(30, 11, 0).slice(0, 0, 1)], Samples(task.build_data()))
    assert replica.module[1].num_batches_tracked == 0
    assert replica.engine.computed is None, "nothing was computed"


@pytest.mark.slow
@needs_a_compiler
def test_warming_up_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    task = dataclasses.replace(batch_norm_task(), compile=True)
    replica = Replica.of(task, task.build_model(0))
    before = replica.inspection.state()
    warm_up(replica, [GlobalBatches(30, 11, 0).slice(0, 0, 1)], Samples(task.build_data()))
    assert list(tmp_path.iterdir()), "something was compiled"
    assert all(torch.equal(tensor, before[name]) for name, tensor in replica.inspection.state().items())
    assert not replica.gradient.any()


def libraries_in(folder):
    """Return the files that torch has compiled to a folder, by run of the compiler."""
    return sorted(file.name for file in folder.rglob("*.so"))


@pytest.mark.slow
@needs_a_compiler
def test_workers_compile_once_and_learn_what_they_would_without(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain = make_task("batch-not-divisible", "adam")  # dropout would draw other numbers in compiled code
    task = dataclasses.replace(plain, compile=True)
    expected = pl.train(plain, "all-reduce", simulated(2), steps=4).parameters
    first = pl.train(task, "all-reduce", pl.Local(workers=2, threads=1), steps=4)
    check_close(first.parameters, expected)
    libraries = libraries_in(tmp_path)
    assert libraries
    again = pl.train(task, "all-reduce", pl.Local(workers=2, threads=1), steps=4)
    assert torch.equal(again.parameters, first.parameters)
    assert libraries_in(tmp_path) == libraries, "the second run found what the first had compiled"


@pytest.mark.slow
@needs_a_compiler
def test_a_model_that_its_factory_compiles_learns_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain = make_task("batch-not-divisible", "adam")  # dropout would draw other numbers in compiled code
    task = dataclasses.replace(plain, model=lambda: torch.compile(plain.model()))
    expected = pl.train(plain, "sync", simulated(2), steps=4).parameters
    check_close(pl.train(task, "sync", pl.Local(workers=2, threads=1), steps=4).parameters, expected)


class Judged(nn.Module):
    """Takes a dictionary by name, and returns its own loss."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2).double()

    def forward(self, inputs, labels):
        return {"loss": (self.inner(inputs) - labels).square().mean()}


class Records(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs, self.labels = samples(24)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "label": self.labels[index], "name": "not for the model"}


def own_step(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


KINDS = {
    "dictionaries": lambda: make_task(model=Judged, data=Records(), loss=None),
    "a step of its own": lambda: make_task(loss=None, step=own_step, accumulate=2),
    "turns": a_gan,
    "evaluated": lambda: make_task(test=samples(12), metric="mse"),
}


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize(
    "kind", ["evaluated", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in list(KINDS)[:-1])]
)
def test_tasks_of_every_kind_learn_compiled_what_they_learn_without(kind):
    plain = KINDS[kind]()
    task = dataclasses.replace(plain, compile=True)
    expected = pl.train(plain, "all-reduce", simulated(2), steps=4)
    run = pl.train(task, "all-reduce", pl.Local(workers=2, threads=1), steps=4)
    check_close(run.parameters, expected.parameters)
    assert [record.metric for record in run.history] == pytest.approx(
        [record.metric for record in expected.history]
    )


@pytest.mark.slow
@needs_a_compiler
def test_nothing_is_compiled_once_the_run_has_begun(tmp_path, monkeypatch):
    """A computation in a thread has hooks, so that it can be cancelled.

    The hooks must not change the compiled code.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    task = make_task(compile=True, test=samples(12), metric=CountCompilations)
    run = pl.train(
        task,
        "all-reduce:algorithm=ring,bucket_mb=0.0001",
        pl.Local(workers=2, threads=1),
        steps=6,
        evaluate_every=1,
    )
    counts = [record.metric for record in run.history]
    assert counts[0] > 0
    assert set(counts) == {counts[0]}


class CountCompilations:
    """A metric: how many graphs the rank that evaluates has compiled."""

    def update(self, outputs, targets):
        pass

    def compute(self):
        return float(torch._dynamo.utils.counters["stats"]["unique_graphs"])
