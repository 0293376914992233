import collections
import ctypes
import itertools
import os
import signal
import time

import pytest
import torch
from refusals import has, refused
from torch import nn

from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.devices import (
    CPU,
    Accelerator,
    check_device,
    device_of,
    enter,
    host_copy,
    move_module,
    moved,
    synchronize,
)
from paceline.model.replica import Replica
from paceline.testing.tasks import Tied, make_task

Point = collections.namedtuple("Point", "x y")

without_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")


def with_a_device(test):
    return pytest.mark.slow(pytest.mark.xdist_group("device")(test))


def places(tensors):
    return [str(tensor.device) for tensor in tensors]


# Words


def test_the_processor_is_always_there():
    assert device_of("cpu", 3) == CPU


@without_accelerator
def test_auto_is_the_processor_where_there_is_no_accelerator():
    assert device_of("auto", 0) == CPU


@without_accelerator
@pytest.mark.parametrize("word", ["cuda", "gpu", "cuda:0", "nonsense"])
def test_a_device_that_is_not_here_is_refused_by_name(word):
    with refused("device", word):
        check_device(word)


@with_a_device
@pytest.mark.parametrize("word", ["standin:0", "cuda", "nonsense"])
def test_where_there_is_an_accelerator_its_name_is_told(on_device, word):
    with refused("device", word, bound=has("auto", "gpu", "standin")):
        on_device(check_device, word)


@with_a_device
@pytest.mark.parametrize("word", ["auto", "gpu", "standin"])
def test_ranks_are_given_the_units_in_turn(on_device, word):
    given = on_device(lambda: [str(device_of(word, place)) for place in range(3)])
    assert given == ["standin:0", "standin:1", "standin:0"]


# To a device and back


def test_a_batch_for_the_processor_is_left_as_it_is():
    batch = {"x": torch.ones(2)}
    assert moved(batch, CPU) is batch


@with_a_device
def test_batches_are_moved_however_nested(on_device):
    def look():
        batch = {
            "x": [torch.ones(2), (torch.ones(1), "text")],
            "y": Point(torch.ones(3), None),
            "z": collections.OrderedDict(more=torch.ones(1)),
            "packed": nn.utils.rnn.pack_sequence([torch.ones(2)]),
        }
        there = moved(batch, torch.device("standin:1"))
        first, (second, text) = there["x"]
        tensors = [first, second, there["y"].x, there["z"]["more"], there["packed"].data]
        return places(tensors), text, type(there["y"]).__name__, there["y"].y, type(there["z"]).__name__

    assert on_device(look) == (["standin:1"] * 5, "text", "Point", None, "OrderedDict")


@with_a_device
def test_tied_parameters_stay_tied(on_device):
    def look():
        model = Tied()
        move_module(model, torch.device("standin:1"))
        return model.decode.weight is model.encode.weight, places(model.parameters())

    assert on_device(look) == (True, ["standin:1"] * 5)


@with_a_device
def test_what_comes_from_a_device_is_copied_to_pinned_memory(on_device):
    def look():
        copy = host_copy(torch.arange(6, device="standin").view(2, 3).t())
        return str(copy.device), copy.is_pinned(), copy.is_contiguous(), copy.tolist()

    assert on_device(look) == ("cpu", True, True, [[0, 3], [1, 4], [2, 5]])


@with_a_device
def test_what_a_thread_makes_is_made_on_the_unit_that_it_entered(on_device):
    def look():
        enter(torch.device("standin:1"))
        made = torch.ones(1, device="standin")
        enter(torch.device("standin:0"))
        return str(made.device)

    assert on_device(look) == "standin:1"


# Time


@pytest.mark.parametrize("name", ["cpu", "meta"])
def test_what_is_no_accelerator_is_told_nothing(name):
    assert Accelerator.of(torch.device(name)) is None


@with_a_device
def test_events_of_a_device_time_what_lies_between_them(on_device):
    def look():
        accelerator = Accelerator(torch.device("standin:1"))
        accelerator.begin()
        time.sleep(0.02)  # the stand-in does its work at once: only the moments of its events tell
        return accelerator.end()

    assert on_device(look) >= 0.02


# A replica


@with_a_device
def test_a_replica_waits_for_its_devices_events_and_knows_what_a_gradient_took_there(on_device):
    def look():
        from stand_in.device import synchronized

        task = make_task(optimizer="momentum")
        replica = Replica.of(task, task.build_model(0), device=torch.device("standin:1"))
        samples, batch = Samples(task.build_data()), GlobalBatches(24, 8, 0).slice(0, 0, 1)
        counts = [synchronized()]
        for work in (lambda: replica.compute(batch, samples), replica.apply, lambda: synchronize(CPU)):
            work()
            counts.append(synchronized())
        tensors = [replica.parameters, replica.gradient, *replica.moments()]
        return (
            [b - a for a, b in itertools.pairwise(counts)],
            replica.engine.device_s,
            places(tensors),
            places(replica.inspection.state().values()),
        )

    waits, device_s, here, brought_back = on_device(look)
    assert waits == [1, 1, 0]
    assert device_s > 0
    assert here == ["standin:1"] * 3
    assert set(brought_back) == {"cpu"}


# Properties of the stand-in


@with_a_device
def test_the_processor_cannot_read_the_memory_of_the_stand_in(on_device):
    """Else a copy that was forgotten would not be noticed."""

    def look():
        address = torch.ones(4, device="standin").data_ptr()
        pid = os.fork()
        if pid == 0:
            ctypes.string_at(address, 4)
            os._exit(0)
        return os.WTERMSIG(os.waitpid(pid, 0)[1])

    assert on_device(look) == signal.SIGSEGV


@with_a_device
@pytest.mark.parametrize(
    "mix",
    [torch.add, torch.mul, lambda a, b: a.index_select(0, b.long()), lambda a, b: torch.cat([a, b])],
    ids=["add", "mul", "index_select", "cat"],
)
def test_the_tensors_of_the_stand_in_refuse_to_mix_with_others(on_device, mix):
    def look():
        a, refused = torch.ones(2, device="standin:0"), []
        for b in (torch.ones(2), torch.ones(2, device="standin:1")):
            try:
                mix(a, b)
            except RuntimeError as error:
                refused.append("on one device" in str(error) or "on the same device" in str(error))
        return refused

    assert on_device(look) == [True, True]
