import pytest
from refusals import has, raised
from torch import nn

import paceline as pl
from paceline.errors import WorkerError
from paceline.testing.tasks import make_task, samples
from paceline.testing.worlds import simulated


def warnings_of(caplog, *, workers=2, count=24, steps=5, spec="all-reduce", norm=True, **changes):
    """Return the warnings for a model that accepts slices of a single sample, so that the run continues."""
    layers = [
        nn.Linear(4, 6),
        nn.Unflatten(1, (3, 2)),
        nn.BatchNorm1d(3) if norm else nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6, 2),
    ]
    given = {"model": nn.Sequential(*layers).double(), "data": samples(count), "batch_size": 8, **changes}
    task = make_task(**given)
    pl.train(task, spec, simulated(workers), steps=steps)
    return [record.getMessage() for record in caplog.records]


def test_batches_of_several_samples_for_each_worker_are_nothing_to_warn_of(caplog):
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("spec", ["all-reduce", "async", "hogwild"])
def test_a_last_batch_of_an_epoch_that_is_too_small_is_told_with_its_remedy(caplog, spec):
    (said,) = warnings_of(caplog, count=27, spec=spec)
    assert "the batch of step 4 has 3 samples for 2 workers (batch_size is 8)" in said
    assert "at least 4 samples in every batch, including the last of an epoch, or drop_last=True" in said


def test_a_run_that_ends_before_the_small_batch_is_not_warned(caplog):
    assert warnings_of(caplog, count=27, steps=3) == []


def test_every_batch_may_be_too_small(caplog):
    (said,) = warnings_of(caplog, batch_size=4, workers=3)
    assert "the batch of step 1 has 4 samples for 3 workers" in said


def test_parts_of_a_slice_may_be_too_small(caplog):
    (said,) = warnings_of(caplog, accumulate=3)
    assert "the batch of step 1 has 8 samples for 2 workers, 3 parts each" in said
    assert "at least 12 samples" in said


def test_a_small_batch_that_is_left_out_is_nothing_to_warn_of(caplog):
    assert warnings_of(caplog, count=27, drop_last=True) == []


def test_a_stream_has_no_small_batch(caplog):
    data = list(zip(*samples(27), strict=True))
    assert warnings_of(caplog, data=lambda: iter(data)) == []


def test_a_model_without_batch_norm_takes_any_slice(caplog):
    assert warnings_of(caplog, count=27, norm=False) == []


def test_clients_that_take_batches_of_their_own_are_not_warned(caplog):
    assert warnings_of(caplog, count=27, spec="fedavg") == []


def test_it_is_said_before_the_run_fails(caplog):
    task = make_task(
        model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double(),
        data=samples(18),
        batch_size=8,
    )
    with raised(WorkerError, cause=has("1 value per channel")):
        pl.train(task, "all-reduce", simulated(2), steps=3)
    assert "a single sample makes BatchNorm fail" in caplog.text
