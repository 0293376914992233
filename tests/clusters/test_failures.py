"""Real failures: processes that raise errors, die, are stopped or interrupted. Nothing hangs and nothing is left."""

import gc
import itertools
import os
import signal
import sys
import threading

import pytest
import torch
from conformance.cases import one_in
from processes import fork_servers, opened, workers
from refusals import has, raised
from tasks import WORLDS, a_task, numbers, samples, simulated
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.errors import (
    DeadlineError,
    LossNotFiniteError,
    PeerLost,
    RunError,
    TaskError,
    WorkerError,
)
from paceline.system import interrupts

PARALLEL = ["map-reduce", "all-reduce:algorithm=shared", "sync"]
UNLUCKY = 5  # the number of the sample at which it happens


def place_of(index, workers):
    """The step and the rank that see a sample first."""
    batches = GlobalBatches(24, 8, seed=0)
    for step in range(3):
        for worker in range(workers):
            if index in batches.slice(step, worker, workers).indices:
                return step, worker
    raise AssertionError


def unlucky_task(happens, **changes):
    """A task with a fault on the rank that computes the loss of a certain sample."""

    def loss(outputs, numbers_and_targets):
        if (numbers_and_targets[:, 0] == UNLUCKY).any():
            outputs = happens(outputs)
        return nn.functional.mse_loss(outputs, numbers_and_targets[:, 1:])

    inputs, targets = samples()
    numbered = torch.cat([torch.arange(24.0, dtype=torch.float64)[:, None], targets], dim=1)
    return a_task(**({"data": (inputs, numbered), "loss": loss} | changes))


def raises(outputs):
    raise ValueError("an unlucky sample")


def becomes_nan(outputs):
    return outputs * torch.nan


def kills_itself(outputs):
    os.kill(os.getpid(), signal.SIGKILL)


def stops_itself(outputs):
    os.kill(os.getpid(), signal.SIGSTOP)


def exits(outputs):
    sys.exit("enough")


# The user's code raises


@pytest.mark.parametrize(
    ("spec", "world", "count"),
    one_in(3, itertools.product([*PARALLEL, "all-reduce:algorithm=ring"], WORLDS, [2, 3])),
)
def test_an_exception_in_the_users_loss_names_rank_step_and_line(spec, world, count):
    step, rank = place_of(UNLUCKY, count)
    with pytest.raises(WorkerError) as caught:
        pl.train(unlucky_task(raises), spec, WORLDS[world](count), steps=100)
    assert (caught.value.rank, caught.value.step) == (rank, step)
    text = str(caught.value)
    assert f"rank {rank} failed in step {step}" in text
    assert 'raise ValueError("an unlucky sample")' in text
    assert "in raises" in text
    assert "paceline/clusters" not in text, "only the user's own lines are shown"


@pytest.mark.parametrize("world", WORLDS)
def test_an_exception_in_the_users_model_names_its_rank(world):
    class Fussy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2).double()

        def forward(self, x):
            if (x == samples()[0][UNLUCKY]).all(1).any():
                raise ArithmeticError("not this one")
            return self.layer(x)

    step, rank = place_of(UNLUCKY, 3)
    with raised(WorkerError, cause="ArithmeticError: not this one", traceback=has("in forward")) as caught:
        pl.train(a_task(model=Fussy), "all-reduce", WORLDS[world](3), steps=100)
    assert (caught.value.rank, caught.value.step) == (rank, step)


@pytest.mark.parametrize("world", WORLDS)
def test_an_exception_in_a_dataset_names_its_rank(world):
    class Torn(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            if index == UNLUCKY:
                raise OSError("torn file")
            return tuple(part[index] for part in samples())

    step, rank = place_of(UNLUCKY, 2)
    with raised(WorkerError, traceback=has("torn file", "OSError")) as caught:
        pl.train(a_task(data=Torn()), "all-reduce", WORLDS[world](2), steps=100)
    assert (caught.value.rank, caught.value.step) == (rank, step)


@pytest.mark.parametrize("world", WORLDS)
def test_an_exception_in_the_users_metric_names_the_reporting_rank(world):
    def metric(outputs, targets):
        raise ArithmeticError("cannot measure")

    with raised(WorkerError, cause="ArithmeticError: cannot measure") as caught:
        pl.train(a_task(test=samples(), metric=metric), "all-reduce", WORLDS[world](2), steps=3)
    assert caught.value.rank == 0


@pytest.mark.parametrize("world", WORLDS)
def test_an_exit_in_the_users_loss_ends_the_run_not_the_caller(world):
    with raised(WorkerError, cause="SystemExit: enough"):
        pl.train(unlucky_task(exits), "all-reduce", WORLDS[world](2), steps=100)


@pytest.mark.parametrize("world", WORLDS)
def test_an_exception_in_a_role_program_names_its_rank(world):
    async def program(ctx):
        if ctx.rank == 1:
            raise LookupError("lost the thread")
        await ctx.net.recv(1)

    with raised(WorkerError, rank=1, cause="LookupError: lost the thread"):
        pl.run_program(program, WORLDS[world](3))


@pytest.mark.parametrize("world", WORLDS)
def test_a_program_that_awaits_a_cancelled_handle_fails_with_its_rank(world):
    async def program(ctx):
        handle = ctx.start(ctx.net.recv(1 - ctx.rank))
        handle.cancel()
        await handle

    with raised(RunError, cause=has("Cancelled")):
        pl.run_program(program, WORLDS[world](2))


@pytest.mark.parametrize(("spec", "world", "count"), one_in(5, itertools.product(PARALLEL, WORLDS, [2, 3])))
def test_a_loss_that_is_not_a_number_is_named_with_rank_and_step(spec, world, count):
    step, rank = place_of(UNLUCKY, count)
    with raised(LossNotFiniteError, rank=rank, step=step) as caught:
        pl.train(unlucky_task(becomes_nan), spec, WORLDS[world](count), steps=100)
    assert (caught.value.rank, caught.value.step) == (rank, step)


# Processes die


@pytest.mark.parametrize(
    ("spec", "waiting"),
    [
        ("all-reduce:algorithm=shared", "barrier"),
        ("all-reduce:algorithm=ring", "receive"),
        ("map-reduce", "receive"),
    ],
)
def test_a_worker_that_is_killed_is_named_with_what_others_waited_for(spec, waiting):
    step, rank = place_of(UNLUCKY, 3)
    with raised(PeerLost, rank=rank, reason=has("SIGKILL"), waiting=has(waiting, f"step {step}")):
        pl.train(unlucky_task(kills_itself), spec, pl.Local(workers=3), steps=100)


@pytest.mark.parametrize("spec", ["single", *PARALLEL])
def test_a_worker_killed_from_outside_ends_the_run(spec):
    def kill_one(progress):
        os.kill(workers()[0], signal.SIGKILL)

    with raised(PeerLost, reason=has("SIGKILL")):
        pl.train(a_task(), spec, pl.Local(workers=2), steps=10**6, progress=kill_one)


def test_a_worker_that_dies_before_it_is_ready_ends_the_run():
    driver = os.getpid()

    class Dies(nn.Linear):
        def __setstate__(self, state):
            if os.getpid() != driver:
                os._exit(7)
            super().__setstate__(state)

    with raised(PeerLost, reason=has("ended", 7)):
        pl.train(a_task(model=lambda: Dies(4, 2).double()), "all-reduce", pl.Local(workers=2), steps=1)


@pytest.mark.parametrize(
    ("spec", "count"),  # two ranks each: of more, one might name another that waits as well
    one_in(3, [("all-reduce:algorithm=shared", 2), ("all-reduce:algorithm=ring", 2), ("map-reduce", 1)]),
)
def test_a_worker_that_stops_is_named_when_the_deadline_has_passed(spec, count):
    _, rank = place_of(UNLUCKY, count)
    with pytest.raises(DeadlineError) as caught:
        pl.train(unlucky_task(stops_itself), spec, pl.Local(workers=count, deadline_s=2.0), steps=100)
    assert caught.value.awaited == f"rank {rank}"
    assert caught.value.rank != rank
    assert caught.value.deadline_s == 2.0


def test_a_long_computation_is_no_failure_however_short_the_deadline_of_its_own_rank():
    async def program(ctx):
        await ctx.sleep(0.5)
        return "done"

    assert pl.run_program(program, pl.Local(workers=1, deadline_s=0.1)).results == ["done"]


def test_a_rank_that_waits_for_one_that_has_ended_is_told_so():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1)

    with raised(PeerLost, rank=1, reason=has("ended")):
        pl.run_program(program, pl.Local(workers=2))


def test_a_message_from_a_rank_that_has_ended_is_received_all_the_same():
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.send(0, numbers(3))
            return None
        await ctx.sleep(0.2)
        return (await ctx.net.recv(1)).tensor

    assert torch.equal(pl.run_program(program, pl.Local(workers=2)).results[0], numbers(3))


def test_a_fork_server_that_is_killed_takes_its_workers_along_and_is_replaced_at_the_next_run():
    servers = []

    def kill_server(progress):
        servers.extend(fork_servers())
        os.kill(servers[0], signal.SIGKILL)

    with pytest.raises(RunError):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=10**6, progress=kill_server)
    assert pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=2).steps == 2
    assert fork_servers() not in ([], servers)


# Interrupts


def test_ctrl_c_ends_the_run_and_the_next_one_works():
    def interrupt(progress):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pl.train(a_task(), "all-reduce", pl.Local(workers=3), steps=10**6, progress=interrupt)
    assert workers() == []
    assert pl.train(a_task(), "all-reduce", pl.Local(workers=3), steps=2).steps == 2


def train_until_interrupted(delay_s):
    with interrupts.recorded():  # on a busy machine the signal may arrive before the first line of `pl.train`
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=10**6)


@pytest.mark.parametrize("delay_s", [0.001, 0.03])  # while it starts, while it runs
def test_an_interrupt_at_any_moment_does_no_harm_to_the_next_run(delay_s):
    with pytest.raises(KeyboardInterrupt):
        train_until_interrupted(delay_s)
    assert workers() == []
    assert pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1).steps == 1


# What remains


def test_runs_leave_no_descriptor_and_no_mapping_behind(file_descriptors):
    def held():
        gc.collect()  # an error and the frames that it passed hold each other
        return file_descriptors(), sorted(name for name in opened(os.getpid()) if "paceline" in name)

    pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    before = held()
    for task in (a_task(), unlucky_task(raises), unlucky_task(kills_itself)):
        for spec in ("map-reduce", "all-reduce"):
            try:
                pl.train(task, spec, pl.Local(workers=2), steps=3)
            except RunError:
                continue
    assert held() == before


def test_a_task_that_cannot_travel_is_refused_and_leaves_nothing(file_descriptors):
    lock = threading.Lock()

    def loss(outputs, targets):
        with lock:
            return nn.functional.mse_loss(outputs, targets)

    pl.train(a_task(), "single", pl.Local(workers=1), steps=1)
    before = file_descriptors()
    with raised(TaskError, cause=has("_thread.lock")):
        pl.train(a_task(loss=loss), "all-reduce", pl.Local(workers=2), steps=1)
    assert file_descriptors() == before
    assert pl.train(a_task(loss=loss), "all-reduce", simulated(2), steps=1).steps == 1


def test_workers_share_memory_that_has_no_name():
    seen = []

    def look(progress):
        seen.extend(name for pid in workers() for name in opened(pid))
        raise StopIteration

    with pytest.raises(StopIteration):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=10**6, progress=look)
    assert any(name.startswith("/memfd:paceline-rings") for name in seen)
    assert not [name for name in seen if name.startswith("/dev/shm")]


def test_an_error_in_the_progress_callback_ends_the_run():
    def broken(progress):
        raise LookupError("no terminal")

    with raised(LookupError, "no terminal"):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=10**6, progress=broken)


def test_workers_need_not_import_torchs_compiler_which_takes_a_second():
    async def program(ctx):
        return "torch._dynamo" in sys.modules

    assert pl.run_program(program, pl.Local(workers=1)).results == [True]


def test_workers_see_the_environment_and_the_folder_of_their_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_TEST", "seen")
    monkeypatch.chdir(tmp_path)

    async def program(ctx):
        return [os.environ["PACELINE_TEST"], os.getcwd()]

    assert pl.run_program(program, pl.Local(workers=1)).results == [["seen", str(tmp_path)]]


def test_workers_share_the_cores_out():
    async def program(ctx):
        return torch.get_num_threads()

    cores = len(os.sched_getaffinity(0))
    assert pl.run_program(program, pl.Local(workers=1)).results == [cores]
    assert pl.run_program(program, pl.Local(workers=2 * cores)).results == [1] * 2 * cores
