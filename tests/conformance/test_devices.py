"""Every strategy on a device with memory that the CPU cannot access. Its tensors cannot be mixed with CPU tensors.

The device has two units, which the ranks share; its kernels are the processor's. So weights have the same bits.
"""

import pytest
import torch
from conformance.cases import REPRODUCIBLE, SPECS, STEPS
from gans import a_gan
from torch import nn

import paceline as pl
from paceline.testing.checks import check_trains
from paceline.testing.tasks import batch_norm_task, make_task, odd_task, samples, stream_task
from paceline.testing.worlds import simulated

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("device")]

HURRIED = [spec for spec in SPECS if spec not in ("single", *REPRODUCIBLE)]
"""Strategies with weights that depend on which worker is quicker."""


def device(workers, **changes):
    return pl.Local(workers=workers, threads=1, device="standin", **changes)


def weights(spec, workers, task, **changes):
    """Return a run on the device, and a simulation, which uses the CPU."""
    clusters = (device(workers, **changes), simulated(workers))
    return [pl.train(task, spec, cluster, steps=STEPS).parameters for cluster in clusters]


@pytest.mark.parametrize("spec", ["single", *REPRODUCIBLE])
def test_a_device_gives_the_bits_of_the_processor(on_device, spec):
    ours, theirs = on_device(weights, spec, 3, odd_task(torch.float32))
    assert torch.equal(ours, theirs)


# A worker of k-batch-sync continues with more batches until the update arrives, so their number is random.
@pytest.mark.parametrize("spec", [spec for spec in HURRIED if spec != "k-batch-sync"])
def test_one_worker_on_a_device_gives_the_bits_of_one_on_the_processor(on_device, spec):
    ours, theirs = on_device(weights, spec, 1, make_task(optimizer="momentum"))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("spec", HURRIED)
def test_workers_on_a_device_train_at_their_own_pace(on_device, spec):
    on_device(lambda: check_trains(spec, device(3), make_task(optimizer="adam")).parameters)


@pytest.mark.parametrize("spec", ["all-reduce", "sync:servers=2", "fedavg", "decentralized"])
@pytest.mark.parametrize("link", ["tcp", pl.Link("1Gbps", "100us")], ids=["tcp", "emulated"])
def test_a_device_over_other_links_gives_the_bits_of_the_processor(on_device, link, spec):
    ours, theirs = on_device(lambda: weights(spec, 2, odd_task(torch.float32), link=link))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("case", ["tied-weights", "unused-layer", "param-groups", "clipping", "dataset"])
@pytest.mark.parametrize("spec", ["all-reduce", "all-reduce:algorithm=shared", "sync:placement=all"])
def test_tasks_of_every_kind_run_on_a_device(on_device, spec, case):
    ours, theirs = on_device(weights, spec, 2, make_task(case, "adam"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["all-reduce", "map-reduce", "sync", "local-sgd:period=2", "fedavg"])
def test_batch_norm_runs_on_a_device(on_device, spec):
    ours, theirs = on_device(weights, spec, 2, batch_norm_task(of_any_batch=True))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_native_all_reduce_runs_on_a_device_that_torch_distributed_does_not_know(on_device):
    def both():
        clusters = (device(2), pl.Local(workers=2, threads=1))
        task, spec = odd_task(torch.float64), "all-reduce:algorithm=native"
        return [pl.train(task, spec, cluster, steps=STEPS).parameters for cluster in clusters]

    ours, theirs = on_device(both)
    assert torch.equal(ours, theirs)


class Judged(nn.Module):
    """A model that takes a dictionary and returns its own loss. It creates tensors on its device."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, inputs, labels, extra):
        assert labels.device == extra[0]["more"].device == self.weights.device
        scores = self.inner(inputs) + torch.zeros(3, device=inputs.device)
        return {"loss": nn.functional.cross_entropy(scores, labels, weight=self.weights), "scores": scores}


class Records(torch.utils.data.Dataset):
    """Samples as nested dictionaries."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        inputs = torch.arange(4.0) + index
        return {"inputs": inputs, "labels": index % 3, "extra": [{"more": inputs}]}


def test_nested_batches_and_a_models_own_loss_are_on_the_device(on_device):
    task = pl.Task(model=Judged, data=Records(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=6)
    ours, theirs = on_device(weights, "all-reduce", 2, task)
    assert torch.equal(ours, theirs)


def scored(cluster):
    data = torch.arange(48.0).view(12, 4) / 48, torch.arange(12) % 3
    task = pl.Task(
        model=lambda: nn.Linear(4, 3),
        data=data,
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        batch_size=6,
        test=data,
        metric="accuracy",
    )
    run = pl.train(task, "decentralized", cluster, steps=STEPS, evaluate_every=1)
    return run.parameters, [(r.metric, r.loss, r.extra["consensus"]) for r in run.history]


def test_metrics_consensus_and_the_weights_of_a_loss_are_those_of_the_processor(on_device):
    ours, theirs = on_device(lambda: [scored(device(3)), scored(simulated(3))])
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("spec", ["all-reduce", "sync", "map-reduce", "local-sgd:period=2", "fedavg"])
def test_models_that_take_turns_run_on_a_device(on_device, spec):
    ours, theirs = on_device(weights, spec, 2, a_gan(clip_norm=0.5))
    assert torch.equal(ours, theirs)


class Errors(nn.Module):
    """A metric with its own tensors, as in torchmetrics: they must be on the device of the outputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def update(self, outputs, targets):
        self.sum += (outputs - targets).abs().sum()
        self.count += targets.numel()

    def compute(self):
        return self.sum / self.count


def watched(cluster):
    """Return the values that callbacks and metrics get in a run with a moving average, micro-batches and a custom
    step."""
    task = make_task(
        optimizer="momentum",
        loss=None,
        step=lambda model, batch: {
            "loss": (model(batch[0]) - batch[1]).square().mean(),
            "size": len(batch[0]),
        },
        test=samples(12),
        test_batch_size=5,
        metric={"error": Errors, "largest": lambda outputs, targets: (outputs - targets).abs().max()},
        ema=0.7,
        accumulate=2,
        schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    )
    best = pl.callbacks.KeepBest()
    run = pl.train(task, "all-reduce", cluster, steps=STEPS, evaluate_every=1, callbacks=[best])
    seen = [(record.metric, record.loss, record.extra) for record in run.history]
    return seen, run.parameters, run.ema_state, run.best_state


def test_metrics_averages_and_callbacks_see_on_a_device_what_they_see_on_the_processor(on_device):
    ours, theirs = on_device(lambda: [watched(device(2)), watched(simulated(2))])
    assert ours[0] == theirs[0]
    assert torch.equal(ours[1], theirs[1])
    for mine, other in zip(ours[2:], theirs[2:], strict=True):
        assert all(torch.equal(mine[name], tensor) for name, tensor in other.items())


@pytest.mark.parametrize("loaders", [0, 1])
def test_what_loaders_fetch_is_moved_when_it_is_taken(on_device, loaders):
    ours, theirs = on_device(weights, "all-reduce", 2, make_task("dataset", "adam", loaders=loaders))
    assert torch.equal(ours, theirs)


def test_a_stream_runs_on_a_device(on_device):
    ours, theirs = on_device(weights, "all-reduce", 2, stream_task())
    assert torch.equal(ours, theirs)


def several_dtypes():
    """A wide layer, a narrow one and a complex one."""
    return nn.Sequential(nn.Linear(4, 5, dtype=torch.float64), Cast(torch.float32), nn.Linear(5, 2), Turned())


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex128))

    def forward(self, x):
        pairs = torch.view_as_real(self.factor)  # the stand-in has no products of complex numbers
        return x * pairs[:, 0] + pairs[:, 1]


@pytest.mark.parametrize("spec", ["all-reduce", "all-reduce:algorithm=shared", "sync:servers=2"])
def test_models_of_several_dtypes_run_on_a_device(on_device, spec):
    ours, theirs = on_device(weights, spec, 2, make_task(optimizer="adam", model=several_dtypes))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def on_ray():
    import ray
    from stand_in.models import Perceptron

    task = make_task(optimizer="adam", model=Perceptron)
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        cluster = pl.Ray(workers=2, resources={"CPU": 1, "GPU": 1}, threads=1)
        ours = pl.train(task, "all-reduce", cluster, steps=STEPS)
    finally:
        ray.shutdown()
    return ours.cluster, ours.parameters, pl.train(task, "all-reduce", simulated(2), steps=STEPS).parameters


def test_ranks_for_whom_ray_has_a_gpu_compute_on_the_accelerator(on_device):
    """The module of the model imports the device's package, because Ray's processes have no entry point for it."""
    pytest.importorskip("ray")
    cluster, ours, theirs = on_device(on_ray)
    assert cluster == "2 workers on a private Ray, 1 thread a rank, on gpu"
    assert torch.equal(ours, theirs)
