import dataclasses
import itertools
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from processes import children, is_alive, wait_until
from refusals import has, raised
from tasks import a_task, samples, simulated
from torch import nn
from torch.utils.data import Dataset

import paceline as pl
from paceline.clusters.process.loaders import Loaders
from paceline.context import Batch
from paceline.data.samples import Samples
from paceline.errors import DeadlineError, PeerLost, RunError, WorkerError
from paceline.system.seeding import rank_seed
from paceline.testing.tasks import stream_task

RANK = 3


class Noisy(Dataset):
    """Samples with noise from every generator, and the process that fetched them."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        noise = torch.rand(1, dtype=torch.float64) + random.random() + np.random.rand()
        return samples()[0][index] + noise, samples()[1][index]


class Makers(Dataset):
    """Each sample is the id of the process that fetched it."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return os.getpid()


class Gated(Dataset):
    """A sample that can be fetched only when a file exists."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 100

    def __getitem__(self, index):
        while not (self.folder / str(index)).exists():
            time.sleep(0.001)
        return index


def batches(count=None):
    """One sample each."""
    steps = itertools.count() if count is None else range(count)
    return (Batch(step, 0, 1, 1, lambda step: np.array([step])) for step in steps)


@pytest.fixture
def start():
    started = []

    def start(dataset, count=2, prefetch=2, deadline_s=100.0, requests_of=whole, **words):
        loaders = Loaders(
            Samples(dataset, **words),
            count=count,
            prefetch=prefetch,
            rank=RANK,
            requests_of=requests_of,
            deadline_s=deadline_s,
        )
        started.append(loaders)
        return loaders

    yield start
    for loaders in started:
        loaders.close()


def number(batch):
    return rank_seed(0, RANK) + batch.step


def whole(batch):
    return [(batch, number(batch))]


def in_two(batch):
    """As in a gradient computed in two parts, where the second part has its own seed."""
    first, second = batch.count // 2, batch.count - batch.count // 2
    parts = (0, first), (first, second)
    return [
        (dataclasses.replace(batch, start=start, count=count), number(batch) + 1000 * start)
        for start, count in parts
    ]


def fetch_all(loaders, upcoming):
    return [loaders.content(batch, number(batch)) for batch in loaders.ahead(upcoming)]


@pytest.mark.parametrize(("count", "prefetch"), [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_loaders_fetch_what_the_rank_would_fetch(count, prefetch, start):
    plain = Samples(Noisy())
    expected = [plain.content(batch, number(batch)) for batch in batches(9)]
    loaded = fetch_all(start(Noisy(), count, prefetch), batches(9))
    for (inputs, targets), (other_inputs, other_targets) in zip(loaded, expected, strict=True):
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)


def test_batches_are_fetched_by_the_loaders_in_turn(start):
    loaders = start(Makers(), count=2)
    assert {int(made) for made in fetch_all(loaders, batches(9))} == set(loaders.pids)


def test_the_next_batches_are_fetched_while_one_is_computed(start, tmp_path):
    loaders = start(Gated(tmp_path), count=2, prefetch=1)
    (tmp_path / "0").touch()
    upcoming = loaders.ahead(batches())
    first = next(upcoming)
    assert loaders.content(first, number(first)).item() == 0
    (tmp_path / "1").touch()
    (tmp_path / "2").touch()
    # The batches arrive before they are requested.
    wait_until(lambda: all(loader.has_answered(0) for loader in loaders._loaders), "the next two came")


def test_a_batch_that_was_not_asked_for_is_fetched_by_the_rank(start):
    loaders = start(Makers())
    (batch,) = batches(1)
    assert loaders.content(batch, number(batch)).item() == os.getpid()


def test_a_batch_is_known_by_what_it_is(start):
    loaders = start(Makers())
    upcoming = loaders.ahead(batches())
    equal = dataclasses.replace(next(upcoming))
    assert loaders.content(equal, number(equal)).item() in loaders.pids


def test_a_batch_by_another_seed_is_fetched_by_the_rank(start):
    loaders = start(Makers())
    upcoming = loaders.ahead(batches())
    first = next(upcoming)
    assert loaders.content(first, number(first) + 1).item() == os.getpid()
    second = next(upcoming)
    assert loaders.content(second, number(second)).item() in loaders.pids


def test_the_parts_of_a_batch_are_asked_for_by_themselves(start):
    loaders, plain = start(Noisy(), requests_of=in_two), Samples(Noisy())
    four = (Batch(step, 0, 4, 4, lambda step: np.arange(4 * step, 4 * step + 4)) for step in range(5))
    for batch in loaders.ahead(four):
        for part, seed in in_two(batch):
            assert (part.step, part.start, part.count, part.whole) in loaders._wanted
            inputs, _ = loaders.content(part, seed)
            assert torch.equal(inputs, plain.content(part, seed)[0])
    assert not loaders._wanted


def test_two_programs_of_a_rank_may_go_through_the_same_batches(start):
    """Like the programs of a rank and of its twin."""
    loaders, same = start(Makers()), list(batches(20))
    for first, second in zip(loaders.ahead(iter(same)), loaders.ahead(iter(same)), strict=True):
        assert loaders.content(first, number(first)).item() in (*loaders.pids, os.getpid())
        assert loaders.content(second, number(second)).item() in (*loaders.pids, os.getpid())
    assert not loaders._wanted


def test_a_batch_that_nobody_wants_any_more_does_not_delay_the_others(start):
    loaders = start(Makers(), count=2, prefetch=2)
    for batch in itertools.islice(loaders.ahead(batches()), 50):
        if batch.step % 7 == 0:
            assert loaders.content(batch, number(batch)).item() in (*loaders.pids, os.getpid())
        assert sum(loader.asked for loader in loaders._loaders) <= 2 * 2 + 2 * 2 + 2


def test_answers_that_nobody_wants_leave_no_open_files(start):
    loaders = start(Makers())
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in itertools.islice(loaders.ahead(batches()), 60):
        pass
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1


def test_a_computation_may_wait_for_its_batch_while_the_program_goes_on(start, tmp_path):
    """Like a computation that is cancelled before its batch arrives."""
    loaders = start(Gated(tmp_path), count=1, prefetch=1)
    upcoming = loaders.ahead(batches())
    first, found = next(upcoming), []
    waiting = threading.Thread(target=lambda: found.append(loaders.content(first, number(first))))
    waiting.start()
    wait_until(loaders._reading.locked, "the thread waits")
    second = next(upcoming)
    for name in "0123":
        (tmp_path / name).touch()
    waiting.join()
    assert found[0].item() == 0
    assert loaders.content(second, number(second)).item() == 1


def test_the_rank_meets_an_error_itself_when_a_loader_has_met_it(start, caplog):
    class Broken(Makers):
        def __getitem__(self, index):
            return 1 / (index - 1)

    loaders = start(Broken())
    upcoming = loaders.ahead(batches())
    first = next(upcoming)
    assert loaders.content(first, number(first)).item() == -1
    second = next(upcoming)
    with pytest.raises(ZeroDivisionError) as caught:
        loaders.content(second, number(second))
    assert caught.value.__notes__ == ["while sample 1 of the data was fetched"]
    assert "rank 3 fetches the batch of step 1 itself" in caplog.text


def test_a_batch_that_cannot_travel_is_fetched_by_the_rank_and_said_once(start, caplog):
    made = fetch_all(start(Makers(), collate=lambda rows: (row for row in rows)), batches(4))
    assert [next(rows) for rows in made] == [os.getpid()] * 4
    assert len(caplog.records) == 1


def test_any_batch_travels(start):
    def collate(rows):
        return {"nested": [torch.zeros(3), {"large": torch.ones(10_000), "text": "a"}], "count": len(rows)}

    (batch,) = fetch_all(start(Makers(), collate=collate), batches(1))
    assert batch["nested"][1]["large"].sum() == 10_000
    assert (batch["nested"][1]["text"], batch["count"]) == ("a", 1)


def test_a_loader_that_is_killed_is_named(start):
    loaders = start(Makers(), count=1)
    upcoming = loaders.ahead(batches())
    next(upcoming)
    os.kill(loaders.pids[0], signal.SIGKILL)
    with raised(RunError, "loader 0", "rank 3", "SIGKILL"):
        fetch_all(loaders, batches())


def test_a_loader_that_ends_is_named(start):
    class Leaving(Makers):
        def __getitem__(self, index):
            os._exit(7)

    with raised(RunError, "loader 0", "rank 3", 7):
        fetch_all(start(Leaving(), count=1), batches())


def test_a_wait_for_samples_has_a_deadline(start, tmp_path):
    loaders = start(Gated(tmp_path), count=1, deadline_s=0.1)
    with raised(DeadlineError, rank=3, operation=has(0), deadline_s=0.1):
        fetch_all(loaders, batches())


def test_loaders_end_when_they_are_closed(start):
    loaders = start(Makers())
    pids = loaders.pids
    loaders.close()
    assert not any(is_alive(pid) for pid in pids)
    assert not set(pids) & set(children(os.getpid()))


def test_loaders_that_nobody_holds_any_more_end():
    loaders = Loaders(Samples(Makers()), count=1, prefetch=1, rank=0, requests_of=whole, deadline_s=9.0)
    (pid,) = loaders.pids
    del loaders
    assert not is_alive(pid)


# In a run


def model():
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 2)).double()


@pytest.mark.parametrize(
    ("spec", "loaders"),
    [
        ("all-reduce", 2),
        pytest.param("all-reduce", 1, marks=pytest.mark.slow),
        pytest.param("sync", 2, marks=pytest.mark.slow),
        ("fedavg:epochs=2,batch=3", 2),
        pytest.param("local-sgd", 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_gives_the_same_bits_with_loaders_and_in_simulation(spec, loaders):
    words = {"model": model, "data": Noisy(), "loaders": loaders, "prefetch": 3}
    # A low rate: clients that take many steps of dropout and noise may run away.
    task = a_task(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01), **words)
    real = pl.train(task, spec, pl.Local(workers=2, threads=1), steps=5)
    virtual = pl.train(task, spec, simulated(2, threads=1), steps=5)
    assert torch.equal(real.parameters, virtual.parameters)


class FetchedByLoaders(Noisy):
    """It refuses the process that it was sent to."""

    def __setstate__(self, state):
        self.__dict__ = state | {"home": os.getpid()}

    def __getitem__(self, index):
        assert os.getpid() != getattr(self, "home", None), "the rank fetches itself"
        return super().__getitem__(index)


def test_a_gradient_in_parts_has_its_parts_fetched_by_loaders():
    words = {"model": model, "loaders": 2, "accumulate": 3}
    real = pl.train(
        a_task(data=FetchedByLoaders(), **words), "all-reduce", pl.Local(workers=2, threads=1), steps=3
    )
    virtual = pl.train(a_task(data=Noisy(), **words), "all-reduce", simulated(2, threads=1), steps=3)
    assert torch.equal(real.parameters, virtual.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["async", "k-sync:k=1", "hogwild", "decentralized:mode=async"])
def test_workers_at_their_own_pace_have_loaders_too(spec):
    task = a_task(model=model, data=Noisy(), loaders=1)
    assert pl.train(task, spec, pl.Local(workers=2), steps=8).steps == 8


def test_loaders_read_a_stream_too():
    real = pl.train(stream_task(loaders=2), "all-reduce", pl.Local(workers=2, threads=1), steps=6)
    virtual = pl.train(stream_task(), "all-reduce", simulated(2, threads=1), steps=6)
    assert torch.equal(real.parameters, virtual.parameters)


def test_a_users_error_is_told_as_without_loaders():
    class Broken(Noisy):
        def __getitem__(self, index):
            raise KeyError("no such image")

    messages = []
    for loaders in (0, 2):
        with raised(WorkerError, traceback=has("no such image")) as caught:
            pl.train(a_task(data=Broken(), loaders=loaders), "single", pl.Local(workers=1), steps=2)
        messages.append(caught.value.traceback)
    assert messages[0] == messages[1]
    assert "of the data was fetched" in messages[0]


def test_a_rank_that_is_killed_takes_its_loaders_with_it(tmp_path):
    class Telling(Noisy):
        def __getitem__(self, index):
            (tmp_path / str(os.getpid())).touch()
            return super().__getitem__(index)

    def deadly(outputs, targets):
        if len(list(tmp_path.iterdir())) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.mse_loss(outputs, targets)

    task = a_task(data=Telling(), loss=deadly, loaders=2)
    with raised(PeerLost, reason=has("SIGKILL")):
        pl.train(task, "single", pl.Local(workers=1), steps=10**6)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the loaders have ended")


def test_a_run_leaves_no_loaders_behind(tmp_path):
    class Telling(Noisy):
        def __getitem__(self, index):
            (tmp_path / str(os.getpid())).touch()
            return super().__getitem__(index)

    pl.train(a_task(data=Telling(), loaders=2), "all-reduce", pl.Local(workers=2), steps=6)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the loaders have ended")
