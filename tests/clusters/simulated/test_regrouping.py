"""A simulated run with `min_workers` loses ranks, and gives the weights of `single`."""

import time

import pytest
import torch
from elastic import (
    CHANGES,
    METRIC,
    check_against_single,
    check_members,
    single,
)
from refusals import has, raised, refused
from tasks import a_task, samples
from torch import nn

import paceline as pl
from paceline.checkpoints import Store
from paceline.errors import PeerLost
from paceline.faults import Cut, Join, Kill

STEPS = 6


def cluster(*faults, workers=4, min_workers=2, **changes):
    given = {"compute": pl.times.Constant(0.01), "link": pl.Link("1Mbps", "1ms")} | changes
    return pl.Simulated(workers=workers, min_workers=min_workers, faults=faults, **given)


def trained(*faults, task=None, strategy="all-reduce", **changes):
    of_train = ("steps", "checkpoint", "checkpoint_every", "resume")
    options = {"steps": STEPS} | {name: changes.pop(name) for name in of_train if name in changes}
    return pl.train(task or a_task(), strategy, cluster(*faults, **changes), **options)


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Kill(1, step=3)],
        [Kill(0, step=3)],
        [Kill(0, step=0), Kill(1, step=0)],
        [Kill(3, step=STEPS - 1)],
        [Kill(0, at=0.021), Kill(2, at=0.022)],
    ],
    ids=str,
)
def test_the_weights_are_those_of_single_whatever_ranks_are_lost(faults):
    run = trained(*faults)
    check_against_single(run, single(0, STEPS))
    assert {rank for rank, _ in run.lost} == {fault.rank for fault in faults}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "strategy", ["all-reduce", "sync:placement=worker", "local-sgd:period=2,post_local=100"]
)
@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_neither_a_short_nor_a_long_cut_changes_the_weights(seconds, strategy, restart):
    run = trained(Cut([1, 3], at=0.021, seconds=seconds), strategy=strategy, restart=restart)
    check_against_single(run, single(0, STEPS))
    is_lost = seconds > 15
    assert {rank for rank, _ in run.lost} == ({1, 3} if is_lost else set())
    assert {rank for rank, _ in run.joined} == ({1, 3} if is_lost and restart else set())
    until_s = 0.021 + (15 if is_lost else seconds)
    assert until_s < run.seconds < until_s + 1


def test_the_same_faults_give_the_same_trace_byte_for_byte(tmp_path):
    for name in ("a.json", "b.json"):
        trained(Kill(0, at=0.05), Kill(2, step=4)).trace.save(tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_run_without_faults_is_the_same_with_min_workers():
    kept = trained()
    plain = pl.train(a_task(), "all-reduce", cluster(min_workers=None), steps=STEPS)
    assert torch.equal(kept.parameters, plain.parameters)
    assert kept.seconds == plain.seconds
    assert len(kept.generations) == 1
    assert plain.generations == []


def test_a_loss_is_detected_at_once_and_members_agree_after_their_computation():
    run = trained(Kill(1, at=0.013), link=pl.Link.ideal())
    _, second = run.generations
    assert (second.members, second.lost, second.first_step) == ((0, 2, 3), (1,), 1)
    assert second.detected_s == 0.013
    assert second.began_s == pytest.approx(0.02)  # the gradients of that step are computed to their end


def test_a_member_without_the_last_step_copies_it():
    # A byte takes 8 us: rank 0 has its result of a step before the last message of the ring has arrived elsewhere.
    for at_us in range(30_000, 60_000, 1_000):
        run = trained(Kill(3, at=at_us * 1e-6), link=pl.Link("1Mbps", "0.1ms"))
        check_against_single(run, single(0, STEPS))


def test_a_member_that_has_copied_a_step_is_copied_in_turn():
    # Rank 0 alone completes step 2 and sends it, with its momentum, to one member after the other. It is then lost.
    for at_us in range(26_000, 60_000, 2_000):
        faults = [Kill(2, step=2), Kill(0, at=at_us * 1e-6)]
        run = trained(*faults, task=a_task(**CHANGES[1]), strategy="all-reduce:algorithm=tree", workers=5)
        check_against_single(run, single(1, STEPS))


@pytest.mark.parametrize("spec", ["all-reduce", "sync", "local-sgd:period=2,post_local=100"])
def test_a_lost_worker_begins_anew_and_joins(spec):
    task = a_task(**CHANGES[1])
    run = trained(Kill(1, step=2), Kill(1, at=0.09), task=task, strategy=spec, restart=True)
    check_against_single(run, single(1, STEPS))
    assert run.joined[0][0] == 1
    assert 1 in run.generations[-1].members
    assert run.generations[1].repeated_steps >= 1


def test_a_worker_that_has_joined_begins_with_the_batch_of_the_run():
    # Rank 1 is lost while rank 0, which has joined, copies the parameters. No worker has drawn a batch since.
    for at_us in range(60_000, 72_000, 1_000):
        faults = [Kill(0, step=3), Kill(1, at=at_us * 1e-6)]
        run = trained(*faults, strategy="sync", workers=2, min_workers=1, restart=True)
        check_against_single(run, single(0, STEPS))


@pytest.mark.parametrize("every", [1, 2])
def test_a_member_that_copies_a_step_follows_the_metric(every):
    for at_us in range(26_000, 60_000, 4_000):
        faults = [Kill(2, step=2), Kill(0, at=at_us * 1e-6)]
        run, alone = (
            pl.train(a_task(**CHANGES[METRIC]), spec, machines, steps=STEPS, evaluate_every=every)
            for spec, machines in (
                ("all-reduce:algorithm=tree", cluster(*faults, workers=5, restart=True)),
                ("single", cluster(workers=1, min_workers=None)),
            )
        )
        torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=1"])
def test_a_metric_from_before_a_resume_is_known_to_all_members(spec, tmp_path):
    given = {"task": a_task(**CHANGES[METRIC]), "strategy": spec, "checkpoint": tmp_path}
    trained(steps=3, min_workers=None, **given)
    faults = [Kill(2, at=0.001), Kill(0, at=0.045)]
    run = trained(*faults, restart=True, resume="must", checkpoint_every=100, **given)
    torch.testing.assert_close(run.parameters, single(METRIC, STEPS).parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["local-sgd:period=2", "diloco:period=2"])
def test_a_schedule_that_needs_a_metric_is_refused_where_workers_go_back_several_steps(spec):
    with refused("schedule", "ReduceLROnPlateau"):
        trained(task=a_task(**CHANGES[METRIC]), strategy=spec)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("spec", ["all-reduce", "sync"])
def test_checkpoints_of_a_run_that_loses_workers_are_those_of_single(spec, restart, tmp_path):
    given = {"task": a_task(**CHANGES[1]), "strategy": spec, "checkpoint": tmp_path, "checkpoint_every": 2}
    trained(Kill(1, step=3), Kill(0, at=0.075), restart=restart, **given)
    run = trained(steps=STEPS + 3, resume="must", min_workers=None, **given)
    torch.testing.assert_close(run.parameters, single(1, STEPS + 3).parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "restart", "faults"),
    [
        ("zero:stage=1", True, [Kill(0, at=0.12), Kill(1, step=5)]),
        ("zero:stage=2", False, [Kill(0, step=4)]),
        ("zero:stage=3", True, [Kill(0, at=0.12), Kill(1, step=5)]),
        ("layers", False, [Kill(1, step=4)]),
        ("tensor:size=2", False, [Kill(0, step=4), Kill(3, step=5)]),
        ("hybrid:pipeline=2", False, [Kill(0, step=3), Kill(2, step=5)]),
    ],
)
def test_without_a_part_the_others_go_back_to_the_newest_checkpoint(spec, restart, faults, tmp_path):
    given = {"task": a_task(**CHANGES[2]), "strategy": spec, "restart": restart}
    run = trained(*faults, checkpoint=tmp_path, checkpoint_every=2, **given)
    check_against_single(run, single(2, STEPS))
    assert {rank for rank, _ in run.lost} == {fault.rank for fault in faults}


@pytest.mark.parametrize("delay_s", [0, 0.05])
def test_a_slow_disk_does_not_change_the_checkpoint_that_a_simulation_goes_back_to(
    delay_s, tmp_path, monkeypatch
):
    write = Store.write
    monkeypatch.setattr(Store, "write", lambda *given: (time.sleep(delay_s), write(*given)))
    given = {"task": a_task(**CHANGES[2]), "strategy": "zero:stage=1", "restart": True}
    faults = [Kill(0, at=0.12), Kill(1, step=5)]
    run = trained(*faults, checkpoint=tmp_path, checkpoint_every=2, **given)
    check_against_single(run, single(2, STEPS))
    assert [each.first_step for each in run.generations] == [0, 4, 4, 4]


def test_a_reporter_that_joins_again_leaves_the_record_to_another_rank():
    run = trained(Kill(0, step=2), Kill(1, step=4), restart=True)
    check_against_single(run, single(0, STEPS))
    assert {rank for rank, _ in run.joined} == {0, 1}


@pytest.mark.parametrize("spec", ["all-reduce", "zero:stage=1"])
def test_a_worker_joins_one_that_is_left_alone(spec, tmp_path):
    # It never waits for others. The checkpoints that it writes alone wait for nobody, too.
    given = {"workers": 2, "min_workers": 1, "restart": True, "checkpoint": tmp_path, "checkpoint_every": 1}
    run = trained(Kill(1, step=1), strategy=spec, **given)
    check_against_single(run, single(0, STEPS))
    assert [rank for rank, _ in run.joined] == [1]
    assert run.joined[0][1] < STEPS


@pytest.mark.parametrize("join", [Join(at=0.08), Join(step=4)], ids=str)
def test_a_lost_worker_joins_when_a_fault_says_so(join):
    run = trained(Kill(2, step=1), join)
    check_against_single(run, single(0, STEPS))
    assert [rank for rank, _ in run.joined] == [2]
    assert run.generations[1].members == (0, 1, 3)


def test_a_join_without_a_lost_worker_does_nothing():
    assert trained(Join(at=0.01), Join(at=100.0)).seconds == trained().seconds


@pytest.mark.parametrize("spec", ["all-reduce", "fedavg"])
def test_a_run_that_accepts_no_workers_refuses_a_join(spec):
    with refused("faults", "Join"):
        trained(Join(step=1), strategy=spec, min_workers=None if spec == "all-reduce" else 2)


def test_a_run_whose_workers_all_die_at_once_ends():
    with raised(PeerLost, reason=has("min_workers=1", 0)):
        trained(*(Kill(rank, at=0.03) for rank in range(4)), min_workers=1, restart=True)


def test_too_few_workers_end_the_run():
    with raised(PeerLost, rank=2, reason=has("min_workers=2", 1)):
        trained(Kill(0, step=1), Kill(1, step=2), Kill(2, step=3))


def test_a_repeated_step_counts_once_in_batch_norm_statistics():
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()

    task = a_task(model=model, batch_size=16)
    for at_s in (0.005, 0.0155, 0.031, 0.042):
        run = trained(Kill(0, at=at_s), task=task)
        assert int(run.state["1.num_batches_tracked"]) == STEPS


def test_without_math_a_lost_rank_costs_time():
    compute = {"math": "none", "link": pl.Link("10Mbps", "1ms")}
    quick, slow = (trained(*faults, **compute) for faults in ([], [Kill(1, step=3)]))
    assert slow.seconds > quick.seconds
    assert slow.generations[-1].members == (0, 2, 3)


def test_callbacks_see_each_step_of_all_reporters():
    class Steps:
        def __init__(self):
            self.seen = []

        def on_step(self, record):
            self.seen.append(record.step)

    steps = Steps()
    pl.train(a_task(), "all-reduce", cluster(Kill(0, step=2)), steps=STEPS, callbacks=[steps])
    assert sorted(set(steps.seen)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("min_workers", [0, 5, True, "2", 1.5])
def test_a_number_of_workers_that_cannot_be_is_refused(min_workers):
    with refused("min_workers", min_workers):
        pl.Simulated(workers=4, min_workers=min_workers, compute=pl.times.Constant(0.01))


def test_shared_memory_is_refused():
    machines = cluster(link="shared-memory")
    with refused("algorithm", "shared"):
        pl.train(a_task(), "all-reduce:algorithm=shared", machines, steps=STEPS)
    run = pl.train(a_task(), "all-reduce", machines, steps=STEPS)
    check_against_single(run, single(0, STEPS))
    assert "messages" in run.environment["min_workers"]


def test_a_program_is_refused():
    async def program(ctx):
        return ctx.rank

    with refused("min_workers", 2):
        pl.run_program(program, cluster())


@pytest.mark.parametrize("spec", ["sync", "map-reduce", "async:placement=worker"])
def test_the_loss_of_the_server_ends_the_run(spec):
    server = 0 if "placement" in spec else 4
    with raised(PeerLost, rank=server):
        trained(Kill(server, step=2), strategy=spec)


@pytest.mark.parametrize("spec", ["local-sgd:period=3", "diloco:period=3,fragments=3,delay=1"])
def test_workers_with_models_of_their_own_repeat_the_steps_since_the_last_average(spec):
    runs = [trained(Kill(0, at=at_s), strategy=spec, link=pl.Link.ideal()) for at_s in (0.031, 0.042, 0.059)]
    assert {run.generations[1].first_step for run in runs} == {3}
    assert all(torch.equal(run.parameters, runs[0].parameters) for run in runs)
    assert [each.samples for each in runs[0].history] == [each.samples for each in single(0, STEPS).history]


@pytest.mark.parametrize("spec", ["fedavg", "decentralized", "decentralized:mode=async"])
def test_strategies_that_continue_by_themselves_have_generations_too(spec):
    run = trained(Kill(2, step=1), Kill(1, at=0.031), strategy=spec)
    check_members(run)
    assert len(run.generations) == 3
    assert all(each.began_s == each.detected_s for each in run.generations)
    with raised(PeerLost, reason=has("min_workers=3", 2)):
        trained(Kill(2, step=1), Kill(1, at=0.031), strategy=spec, min_workers=3)


@pytest.mark.parametrize("spec", ["all-reduce", "sync", "local-sgd:period=2,post_local=100"])
def test_a_run_in_16_bits_stays_as_near_to_single_as_without_faults(spec):
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    data = tuple(each.float() for each in samples())
    task = a_task(model=model, data=data, precision="bf16")
    alone = pl.train(task, "single", cluster(workers=1, min_workers=None), steps=STEPS)
    run = trained(Kill(0, step=2), Kill(2, at=0.08), task=task, strategy=spec)
    torch.testing.assert_close(run.parameters, alone.parameters, rtol=0, atol=0.02)


def test_a_server_follows_a_moving_average():
    task = a_task(ema=0.9)
    alone = pl.train(task, "single", pl.Simulated(workers=1, compute=pl.times.Constant(0.01)), steps=STEPS)
    for at_s in (0.02, 0.0312, 0.0331, 0.0352):
        run = trained(Kill(2, at=at_s), strategy="map-reduce", task=task)
        for name, value in alone.ema_state.items():
            torch.testing.assert_close(run.ema_state[name], value, rtol=0, atol=1e-12)


def test_a_server_counts_each_gradient_of_an_update_once():
    run = trained(Kill(2, at=0.033), strategy="async", min_workers=1)
    assert sum(run.staleness.values()) == STEPS
