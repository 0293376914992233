"""`pl.plan` on small simulated clusters."""

import json

import pytest
from refusals import refused
from small_plans import LINK, aimed, cluster, mlp

import paceline as pl
from paceline.costs.description_files import cluster_names
from paceline.planner.sizing import resized, with_workers

NAMES = ["single", "all-reduce", "sync", "k-sync", "async"]


@pytest.fixture(scope="module")
def plan():
    return pl.plan(mlp(), cluster(), strategies=NAMES)


def test_the_best_is_the_fastest_with_the_steps_of_single(plan):
    assert plan.best.family in ("all-reduce", "sync")
    assert plan.best.workers == 4
    assert plan.best.equals_single
    first, *others = [entry.batch_seconds for entry in plan.ranked]
    assert others == sorted(others)
    assert first <= 1.001 * others[0]  # of equal ones, the one with the fewest parameters is the best


def test_entries_that_cannot_be_compared_come_last(plan):
    is_ranked = [entry.equals_single for entry in plan.entries]
    assert is_ranked == sorted(is_ranked, reverse=True)
    assert not all(is_ranked)


def test_fewer_workers_are_tried_too(plan):
    assert {entry.workers for entry in plan.entries} >= {1, 2, 4}


def test_with_fewer_workers_given_times_cover_larger_slices(plan):
    one = plan.entry("single")
    assert one.workers == 1
    assert one.batch_seconds == pytest.approx(0.04)


def test_training_accepts_the_best_entry(plan):
    run = pl.train(mlp(), plan.best, cluster(), steps=2)
    assert run.steps == 2
    assert run.strategy == plan.best.strategy


def test_training_uses_the_planned_number_of_workers(plan):
    two = next(e for e in plan.entries if e.workers == 2 and e.family == "all-reduce")
    run = pl.train(mlp(), two, cluster(), steps=2)
    assert len(run.trace.spans) == 2
    assert run.step_seconds == pytest.approx(two.prediction.step_seconds, rel=0.05)


def test_a_plan_is_explained_in_three_sentences(plan):
    best, runner_up, rest = plan.summary
    assert plan.best.strategy in best
    assert "compute" in best
    assert "runner-up" in runner_up
    assert "not tried" in rest
    assert str(plan).count("\n") > 5


def test_two_entries_are_compared_term_by_term(plan):
    found = plan.explain(0, "single")
    terms = [row[0] for row in found.cells]
    assert terms[:5] == [
        f"{part}, of a batch" for part in ("compute", "communicate", "wait", "bubble", "update")
    ]
    assert "memory" in terms
    assert "single" in found.sentence


def test_a_plan_can_be_written_as_json(plan):
    found = json.loads(json.dumps(plan.as_dict()))
    assert found["best"]["strategy"] == plan.best.strategy
    assert len(found["entries"]) == len(plan.entries)


def test_with_a_slow_worker_and_a_target_waiting_for_all_is_not_the_best():
    found = pl.plan(aimed(), cluster(slow={3: 8.0}), strategies=["all-reduce", "k-sync"], workers=4)
    assert found.goal == "time to target"
    assert found.best.family == "k-sync"
    assert found.best.target.seconds < found.entry("all-reduce").target.seconds
    assert found.best.target.low <= found.best.target.seconds <= found.best.target.high
    assert any(one.name == "the stragglers" for one in found.bottlenecks) or found.best.family == "k-sync"


def test_the_goal_memory_prefers_what_holds_the_least():
    found = pl.plan(mlp(), cluster(), "memory", strategies=["map-reduce", "sync"], workers=2)
    bytes_of = [entry.prediction.memory_bytes for entry in found.ranked]
    assert bytes_of == sorted(bytes_of)


def test_the_goal_cost_prefers_fewer_hosts_if_more_gain_too_little():
    slow = pl.Simulated(4, hosts=4, compute=pl.times.Constant("1ms"), link=pl.Link("1Mbps", "1ms"))
    found = pl.plan(mlp(), slow, "cost", strategies=["single", "all-reduce"], price_per_hour=3.6)
    assert found.best.hosts == 1
    assert found.best.cost == pytest.approx(found.best.batch_seconds * 0.001)


def test_the_plan_is_the_same_every_time():
    words = {"strategies": ["map-reduce", "async"], "workers": 2}
    one, other = (pl.plan(mlp(), cluster(), **words) for _ in range(2))
    assert one.entries == other.entries


def test_configurations_that_do_not_fit_are_rejected():
    whole = pl.plan(mlp(), cluster(), strategies=["sync"], workers=2)
    most = max(entry.prediction.memory_bytes for entry in whole.entries)
    found = pl.plan(mlp(), cluster(), strategies=["sync"], workers=2, memory=most - 1)
    assert found.rejected
    assert all(entry.misses_bytes > 0 for entry in found.rejected)
    assert all(entry.prediction.fits for entry in found.entries)


def test_if_nothing_fits_the_error_says_how_much_is_missing():
    with refused("memory") as error:
        pl.plan(mlp(), cluster(), strategies=["map-reduce"], workers=2, memory="1kB")
    assert "map-reduce" in str(error.value)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("target", {"goal": "time to target"}),
        ("goal", {"goal": "speed"}),
        ("price_per_hour", {"goal": "cost"}),
        ("price_per_hour", {"price_per_hour": -1.0}),
        ("workers", {"workers": (3, 2)}),
        ("workers", {"workers": 5}),
        ("workers", {"workers": 0}),
        ("memory", {"memory": "60 parsecs"}),
        ("strategies", {"strategies": ["k-sync:k=2"]}),
        ("strategy", {"strategies": ["all-redus"]}),
        ("most", {"most": 0}),
        ("epochs", {"epochs": 0}),
    ],
)
def test_bad_arguments_are_refused(argument, words):
    with refused(argument):
        pl.plan(mlp(), cluster(), **words)


def test_a_memory_limit_above_that_of_the_device_is_refused():
    described = pl.load_cluster("dgx-a100", hosts=1)
    with refused("memory"):
        pl.plan(mlp(), described, memory="100GB")


@pytest.mark.parametrize("name", cluster_names())
def test_a_plan_can_be_made_for_every_description_of_the_package(name):
    found = pl.plan(mlp(), name, "step", strategies=["all-reduce"], workers=2)
    assert found.best.workers == 2
    assert (found.best.cost is None) == (pl.load_cluster(name).price_per_hour is None)


def test_shapes_have_no_time_to_the_target():
    task = pl.models.GPT(2, 16, 2, 8, 32, 4)
    with refused("target"):
        pl.plan(task, pl.load_cluster("dgx-a100"), "time to target")


def test_a_cluster_that_cannot_be_simulated_is_refused():
    with refused("cluster"):
        pl.plan(mlp(), 4)


def test_the_first_ranks_of_a_cluster_keep_their_links():
    whole = pl.Simulated(
        8, hosts=2, compute=pl.times.Constant(1.0), link=LINK, card="1Gbps", slow={1: 2.0, 7: 3.0}
    )
    one = resized(whole, 4)
    assert (one.hosts, one.card, one.inside) == (1, None, whole.memory)
    assert one.slow == {0: 2.0, 1: 4.0, 2: 2.0, 3: 2.0}
    six = resized(whole, 6)
    assert (six.hosts, six.card) == ((4, 2), "1Gbps")


def test_a_plan_for_more_workers_than_the_cluster_has_is_refused():
    with refused("cluster"):
        with_workers(cluster(2), 4)
    assert with_workers(None, 3).workers == 3
    assert with_workers(pl.Local(workers=4, slow={3: 2.0}), 2).slow == {}
