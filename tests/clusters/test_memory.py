"""`run.memory`: what each rank held, in every world."""

import json

import pytest
import torch
from tasks import a_task, perceptron, simulated
from torch import nn

import paceline as pl
from paceline.model.memory import KINDS, empty_peak

STEPS = 3


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def normalised():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).double()


def task_of(**changes):
    return a_task(**{"model": normalised, "optimizer": adam, "batch_size": 12} | changes)


def memory_of(spec, cluster, **changes):
    return pl.train(task_of(**changes), spec, cluster, steps=STEPS).memory


CLUSTERS = {
    "tcp": pl.Local(workers=3, link="tcp", threads=1),
    "local": pl.Local(workers=3, threads=1),
    "without mathematics": simulated(3, math="none"),
}


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "sync", "diloco:period=2", "fedavg"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_rank_holds_the_same_in_every_world(spec, name):
    assert memory_of(spec, CLUSTERS[name]) == memory_of(spec, simulated(3))


@pytest.mark.parametrize("spec", ["tensor", "hybrid:pipeline=2,tensor=2"])
def test_a_tensor_group_holds_the_same_without_mathematics(spec):
    workers = 4 if "pipeline" in spec else 2
    with_data, without = (
        memory_of(spec, simulated(workers, math=m), model=perceptron) for m in ("real", "none")
    )
    assert without == with_data
    whole = memory_of("single", simulated(1), model=perceptron)[0]
    assert with_data[0]["optimizer"] < whole["optimizer"]


def test_local_workers_that_share_memory_each_keep_the_optimizer_of_their_shard():
    shared = memory_of("all-reduce", pl.Local(workers=3, threads=1))
    alone = memory_of("single", simulated(1))
    assert sum(each["optimizer"] for each in shared) == alone[0]["optimizer"]


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=2", "pipeline:microbatches=2"])
def test_one_step_has_the_memory_of_many(spec):
    one, many = (pl.train(task_of(), spec, simulated(2), steps=steps).memory for steps in (1, STEPS))
    assert one == many
    assert all(each["optimizer"] > 0 for each in one)


@pytest.mark.parametrize("math", ["real", "none"])
def test_rows_of_a_mesh_shard_the_optimizer_state_as_zero_does(math):
    rows, zero = (
        memory_of(spec, simulated(4, math=math), model=perceptron)
        for spec in ("hybrid:zero=1", "zero:stage=1")
    )
    assert [each["optimizer"] for each in rows] == [each["optimizer"] for each in zero]
    whole = memory_of("single", simulated(1), model=perceptron)[0]
    assert sum(each["optimizer"] for each in rows) == whole["optimizer"]


@pytest.mark.parametrize("zero", [1, 2])
def test_rows_of_tensor_groups_have_even_shards(zero):
    spec = f"hybrid:data=4,tensor=2,zero={zero}"
    real, shapes = (
        memory_of(spec, simulated(8, math=m), model=perceptron, optimizer=adam) for m in ("real", "none")
    )
    assert [each["optimizer"] for each in real] == [each["optimizer"] for each in shapes]
    state = [each["optimizer"] for each in real]
    assert max(state) - min(state) <= 2 * 8 * 2 * 3  # at most a few values, of two moments, in each segment


def test_a_worker_of_servers_has_no_optimizer_and_a_server_has_no_activations():
    workers, servers = (memory_of("sync:servers=2", simulated(3))[part] for part in (slice(3), slice(3, 5)))
    assert all(each["optimizer"] == 0 and each["activations"] > 0 for each in workers)
    assert all(each["optimizer"] > 0 and each["activations"] == 0 for each in servers)
    whole = memory_of("single", simulated(1))[0]
    assert sum(each["optimizer"] for each in servers) == whole["optimizer"] == 2 * whole["parameters"]


def test_a_rank_that_serves_and_computes_holds_both_replicas():
    alone = memory_of("single", simulated(1))[0]
    both = memory_of("central-storage", simulated(2))
    assert max(each["parameters"] for each in both) >= alone["parameters"]
    assert [tuple(each) for each in both] == [(*KINDS, "total")] * len(both)


def test_a_moving_average_is_one_more_copy_of_the_parameters():
    plain, averaged = (memory_of("all-reduce", simulated(2), **more) for more in ({}, {"ema": 0.9}))
    assert averaged[0]["parameters"] == 2 * plain[0]["parameters"]
    assert averaged[1] == plain[1]


def test_a_model_that_cannot_run_without_data_has_no_activations_where_no_mathematics_is_done():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2).double()

        def forward(self, x):
            return self.layer(x) if float(x.sum()) else self.layer(-x)

    (memory,) = memory_of("single", simulated(1, math="none"), model=Looks)
    assert memory["activations"] == 0
    assert memory["optimizer"] == 2 * memory["parameters"] > 0


def test_a_rank_that_was_lost_held_nothing_that_is_known():
    faults = (pl.faults.Kill(1, step=1),)
    run = pl.train(task_of(), "async", simulated(2, faults=faults), steps=6)
    assert run.memory[1] == empty_peak()
    assert run.memory[0]["total"] > 0


def test_it_is_saved_and_loaded_and_a_run_that_has_none_is_read(tmp_path):
    run = pl.train(task_of(), "all-reduce", simulated(2), steps=2)
    run.save(tmp_path / "run")
    assert pl.Run.load(tmp_path / "run").memory == run.memory
    assert json.loads(json.dumps(run.as_dict()))["memory"] == run.memory
    path = tmp_path / "run" / "run.json"
    values = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("sha256", "files", "memory")}
    path.write_text(json.dumps(values | {"format": 1}))
    assert pl.Run.load(tmp_path / "run").memory == []


@pytest.mark.parametrize("spec", ["all-reduce", "pipeline:microbatches=2"])
def test_a_run_in_legs_has_the_peak_of_all_of_them(spec, tmp_path, on_a_quick_disk):
    straight = pl.train(task_of(), spec, simulated(2), steps=4)
    given = {"checkpoint": tmp_path, "checkpoint_every": 2}
    pl.train(task_of(), spec, simulated(2), steps=2, **given)
    resumed = pl.train(task_of(), spec, simulated(2), steps=4, resume="must", **given)
    assert resumed.memory == straight.memory
    again = pl.train(task_of(), spec, simulated(2), steps=4, resume="must", **given)
    assert again.memory == straight.memory
