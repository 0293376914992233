import math

import pytest
import torch
from refusals import has, refused
from tasks import a_task

import paceline as pl
from paceline.clusters.base.checks import check_cluster

CLUSTERS = [pl.Local, pl.Simulated, pl.Ray, pl.Launched]
WORLDS = [pl.Local, pl.Simulated]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """As if a launcher had started this process as the only one."""
    words = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("threads", [0, -1, 1025, 1.5, True, "2"])
def test_a_number_of_threads_out_of_range_is_refused(cluster, threads):
    with refused("threads", threads, bound=has(1, 1024)):
        cluster(threads=threads)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_cluster_says_how_many_threads_were_asked_for(cluster):
    assert "thread" not in str(cluster())
    assert str(cluster(threads=1)).endswith(", 1 thread a rank")
    assert str(cluster(threads=2)).endswith(", 2 threads a rank")


@pytest.mark.parametrize("cluster", [pl.Local, pl.Ray, pl.Launched])
@pytest.mark.parametrize("device", [0, torch.device("cpu"), b"cpu"])
def test_a_device_is_named_by_a_word(cluster, device):
    with refused("device", device):
        cluster(device=device)


@pytest.mark.parametrize("cluster", [pl.Local, pl.Launched])
def test_a_device_that_this_machine_has_not_is_refused_before_a_run(cluster):
    with refused("device", "nonsense"):
        cluster(device="nonsense")


def test_the_hosts_of_a_ray_cluster_say_themselves_what_devices_they_have():
    assert pl.Ray(device="nonsense").device_word == "nonsense"


def test_ranks_on_ray_compute_on_a_gpu_if_they_are_given_one():
    assert pl.Ray().device_word == "cpu"
    assert pl.Ray(resources={"GPU": 1}).device_word == "gpu"
    assert pl.Ray(resources={"GPU": 1}, device="cpu").device_word == "cpu"


@pytest.mark.parametrize("cluster", [pl.Local, pl.Launched])
def test_a_cluster_says_on_what_device_it_is(cluster):
    assert str(cluster(threads=1)).endswith(", 1 thread a rank")
    assert str(cluster(threads=1, device="auto")).endswith(", 1 thread a rank, on auto")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_ranks_compute_with_the_threads_asked_for_and_the_run_says_so(world, threads):
    def loss(outputs, targets):
        assert torch.get_num_threads() == threads
        return torch.nn.functional.mse_loss(outputs, targets)

    before = torch.get_num_threads()
    run = pl.train(a_task(loss=loss), "all-reduce", world(workers=2, threads=threads), steps=2)
    assert run.environment["threads a rank"] == str(threads)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_whose_threads_were_not_chosen_says_what_it_had(world):
    seen = pl.run_program(threads_here, world(workers=2)).results
    run = pl.train(a_task(), "all-reduce", world(workers=2), steps=1)
    assert run.environment["threads a rank"] == str(seen[0])


async def threads_here(ctx):
    return torch.get_num_threads()


@pytest.mark.parametrize("cluster", [pl.Local, pl.Ray, pl.Launched])
@pytest.mark.parametrize("deadline_s", ["5", None, True, 0, -1.0, math.nan, math.inf, []])
def test_a_deadline_is_a_finite_number_of_seconds(cluster, deadline_s):
    with refused("deadline_s", bound=has(0)):
        cluster(deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("cluster", "argument"),
    [(pl.Local, "encrypt"), (pl.Ray, "encrypt"), (pl.Ray, "spread"), (pl.Launched, "encrypt")],
)
@pytest.mark.parametrize("value", [1, "no", []])
def test_a_flag_is_true_or_false(cluster, argument, value):
    with refused(argument, value):
        cluster(**{argument: value})


@pytest.mark.parametrize("call", [pl.train, pl.compare])
@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"progress": 5}, refused("progress", 5)),
        ({"evaluate_every": True}, refused("evaluate_every", True, bound=has(1))),
        ({"stop_at_target": "yes"}, refused("stop_at_target", "yes")),
        ({"cluster": pl.Local}, refused("cluster")),
        ({"cluster": 4}, refused("cluster", 4)),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_before_anything_starts(call, arguments, refusal):
    with refusal:
        call(a_task(), "all-reduce", **({"cluster": pl.Simulated(workers=2), "steps": 1} | arguments))


@pytest.mark.parametrize("cluster", [*CLUSTERS, lambda: pl.Ray().hold()])
def test_every_cluster_is_accepted(cluster):
    check_cluster(cluster())
