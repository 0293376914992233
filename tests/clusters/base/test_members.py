"""Members of a run agree on the next generation: decisions from events."""

import json

import pytest

from paceline.clusters.base.members import Agreement, Arrival, Membership

END = Arrival(points=(9,), ended=True)


def agreement(members=4, fewest=1):
    return Agreement(Membership(generation=0, members=tuple(range(members))), fewest)


def arrive(made, **complete):
    for name, steps in complete.items():
        made.arrive(int(name[1:]), Arrival(points=(steps,)))


def test_nothing_is_decided_before_every_remaining_member_has_arrived():
    made = agreement()
    assert made.lose(2)
    arrive(made, r0=5, r1=5)
    assert made.decide(0) is None
    assert made.missing == [3]
    arrive(made, r3=5)
    assert made.decide(0) == Membership(generation=1, members=(0, 1, 3), first=5, source=0)


def test_members_without_the_last_complete_step_copy_it_from_one_that_has_it():
    made = agreement()
    made.lose(0)
    arrive(made, r1=7, r2=8, r3=7)
    decision = made.decide(7)
    assert (decision.first, decision.source, decision.behind) == (8, 2, (1, 3))
    assert decision.recorded == 7
    assert decision.reporter == 1


def test_records_of_a_dropped_step_do_not_count():
    made = agreement()
    made.lose(0)
    arrive(made, r1=7, r2=7, r3=7)
    assert made.decide(8).recorded == 7


def test_a_member_that_is_lost_after_it_has_arrived_does_not_count():
    made = agreement()
    made.lose(0)
    arrive(made, r1=8, r2=7)
    made.lose(1)
    arrive(made, r3=7)
    decision = made.decide(0)
    assert (decision.generation, decision.members, decision.first) == (2, (2, 3), 7)


def test_the_next_generation_begins_with_nobody_arrived():
    made = agreement(3)
    made.lose(0)
    arrive(made, r1=1, r2=1)
    made.decide(0)
    assert made.missing == [1, 2]
    assert made.decide(0) is None
    made.lose(2)
    arrive(made, r1=4)
    assert made.decide(0).members == (1,)


def test_too_few_members_are_told():
    made = agreement(3, fewest=2)
    assert made.lose(0)
    assert not made.lose(1)
    assert "1 worker is left" in made.too_few
    assert "min_workers=2" in made.too_few


def test_a_rank_is_lost_once_and_a_lost_rank_cannot_arrive():
    made = agreement(3)
    made.lose(0)
    made.lose(0)
    assert made.wanted == 1
    made.arrive(0, END)
    arrive(made, r1=2, r2=2)
    assert made.decide(0).first == 2


def test_the_run_is_over_when_all_members_have_ended_and_none_was_lost_meanwhile():
    made = agreement(3)
    made.arrive(0, END)
    made.arrive(1, END)
    assert not made.is_over
    made.arrive(2, END)
    assert made.is_over
    made.lose(1)
    assert not made.is_over
    assert made.decide(9).first == 9


def test_a_rank_that_joins_copies_the_state_and_does_not_report():
    made = agreement(3)
    made.lose(0)
    made.join(0)
    arrive(made, r1=4, r2=4)
    assert made.decide(0) is None
    made.arrive(0, Arrival(points=()))
    decision = made.decide(4)
    assert (decision.members, decision.joined, decision.behind) == ((1, 2, 0), (0,), (0,))
    assert (decision.first, decision.source, decision.reporter) == (4, 1, 1)


def test_a_rank_that_has_not_joined_yet_does_not_count():
    made = agreement(2)
    made.lose(0)
    made.join(0)
    assert not made.lose(1)


def test_a_server_decides_and_all_workers_copy_its_state():
    made = Agreement(Membership(generation=0, members=(0, 1, 2), server=2, reporter=2), fewest=1)
    assert made.lose(1)
    made.arrive(0, Arrival(points=(0,), step=7, own_pace=True))
    made.arrive(2, Arrival(points=(5,), step=5))
    decision = made.decide(4)
    assert (decision.first, decision.source, decision.behind) == (5, 2, (0,))
    assert decision.reporter == 2
    assert not made.lose(0)  # the server computes nothing


@pytest.mark.parametrize(("steps", "drawn"), [((4, 5), 5), ((4, 4), 5), ((2, 1), 2), ((9, 1), 9)])
def test_workers_in_step_draw_the_batch_of_the_next_update_and_others_that_of_the_furthest(steps, drawn):
    made = Agreement(Membership(generation=0, members=(0, 1, 2, 3), server=3, reporter=3), fewest=1)
    made.lose(2)
    for rank, step in enumerate(steps):
        made.arrive(rank, Arrival(points=(0,), step=step, drawn=step, own_pace=True))
    made.arrive(3, Arrival(points=(5,), step=5))
    assert made.decide(5).drawn == drawn


def test_workers_with_models_of_their_own_go_back_to_the_newest_common_point():
    made = Agreement(Membership(generation=0, members=(0, 1, 2)), fewest=1, are_apart=True)
    made.lose(0)
    made.arrive(1, Arrival(points=(4, 8)))
    made.arrive(2, Arrival(points=(0, 4)))
    decision = made.decide(0)
    assert (decision.first, decision.behind) == (4, ())


@pytest.mark.parametrize("behind", [(), (1, 3)])
def test_a_decision_survives_json(behind):
    given = Membership(generation=3, members=(1, 2, 3), first=4, source=2, behind=behind, recorded=3)
    assert Membership.from_values(json.loads(json.dumps(given.to_values()))) == given


def test_members_do_not_go_back_to_a_checkpoint_that_is_ahead_of_them():
    # A checkpoint of step 6 of an earlier generation became complete when the members were in step 3 again.
    made = agreement()
    made.saved = lambda until: max(step for step in (0, 2, 6) if step <= until)
    made.lose(0)
    arrive(made, r1=2, r2=2, r3=2)
    assert made.decide(0).first == 2


def test_a_worker_that_has_not_drawn_a_batch_yet_continues_with_that_of_the_generation():
    made = agreement(2)
    made.lose(0)
    made.arrive(1, Arrival(points=(5,), step=5, drawn=5, own_pace=True))
    assert made.decide(0).drawn == 5
    made.join(0)
    made.arrive(1, Arrival(points=(5,), step=5, drawn=5, own_pace=True))
    made.arrive(0, Arrival(points=()))
    made.decide(0)
    made.lose(1)
    made.arrive(0, Arrival(points=(5,)))
    assert made.decide(0).drawn == 5
