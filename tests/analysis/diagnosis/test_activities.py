import numpy as np
from traces import compute, ranks, receive, send, span, wait

from paceline.analysis.diagnosis.activities import What, read_activities
from paceline.trace import Kind


def test_a_wait_and_the_receipt_that_ends_it_are_one_activity():
    found = read_activities(
        ranks([wait(1.0, 3.0, 1, message=4), receive(3.0, 3.5, 1, message=4)], [send(2.0, 3.0, 0, message=4)])
    )
    assert found.what.tolist() == [What.RECEIPT, What.SEND]
    assert (found.start_s[0], found.end_s[0], found.work_s[0]) == (1.0, 3.5, 0.5)
    assert found.waited.tolist() == [True, False]


def test_a_receipt_without_a_wait_found_its_message_there():
    found = read_activities(ranks([receive(3.0, 3.5, 1, message=4)], [send(2.0, 3.0, 0, message=4)]))
    assert not found.waited[0]


def test_a_wait_and_a_receipt_of_different_messages_are_not_joined():
    """The program asks for two messages; the second is there before the first."""
    spans = [wait(1, 3, 1, message=4), receive(3, 3.5, 2, message=5), receive(3.5, 4, 1, message=4)]
    found = read_activities(ranks(spans))
    assert found.message.tolist() == [4, 5]
    assert found.waited.tolist() == [True, False]


def test_a_rank_that_came_last_to_a_barrier_and_did_not_wait_is_a_member_too():
    waits = [wait(1.0, 4.0, 2, message=-3)], [wait(2.0, 4.0, 2, message=-3)]
    found = read_activities(ranks(*waits, [compute(0, 4)]))
    members = found.where(What.MEETING)
    assert found.rank[members].tolist() == [0, 1, 2]
    assert found.message[members].tolist() == [-3, -3, -3]
    assert (found.start_s[members[2]], found.end_s[members[2]]) == (4.0, 4.0)


def test_waits_at_the_same_time_are_of_two_meetings_if_their_ids_differ():
    found = read_activities(ranks([wait(1, 4, message=-3)], [wait(1, 4, message=-4)]))
    assert found.message[found.where(What.MEETING)].tolist() == [-3, -4]


def test_a_wait_for_another_program_of_the_same_rank_is_left_out():
    found = read_activities(ranks([compute(0, 2), wait(0, 2, 0), receive(2, 2, 0)]))
    assert found.what.tolist() == [What.COMPUTE, What.WORK]


def test_cancelled_computations_are_left_out():
    found = read_activities(ranks([span(Kind.CANCELLED, 0, 2), compute(2, 3)]))
    assert found.what.tolist() == [What.COMPUTE]


def test_a_rank_that_never_computes_is_a_server():
    assert read_activities(ranks([compute(0, 1)], [send(0, 1, 0)])).servers == {1}
    assert not read_activities(ranks([span(Kind.CANCELLED, 0, 1)], [compute(0, 1)])).servers


def test_a_collective_recorded_as_a_whole_is_one_meeting_with_its_wait():
    waits = [compute(0, 1), wait(1, 4, 1, message=-3), receive(4, 5, -1, message=-3)]
    found = read_activities(ranks(waits, [compute(0, 4), receive(4, 5, -1, message=-3)]))
    members = found.where(What.MEETING)
    assert found.start_s[members].tolist() == [1.0, 4.0]
    assert found.end_s[members].tolist() == [5.0, 5.0]
    assert found.work_s[members].tolist() == [0.0, 0.0]


def test_a_reduction_after_a_barrier_is_work_of_its_own():
    spans = ranks(
        [wait(0, 2, 1, message=-3), receive(2, 3, -1)], [wait(2, 2, -1, message=-3), receive(2, 5, -1)]
    )
    found = read_activities(spans)
    assert found.work_s[found.where(What.WORK)].tolist() == [1.0, 3.0]


def test_of_what_begins_at_one_instant_the_recorded_order_stays():
    found = read_activities(
        ranks([send(1.0, 2.0, 1, message=4), receive(1.0, 1.0, 1, message=5)], [compute(0, 1)])
    )
    assert found.what[:2].tolist() == [What.SEND, What.RECEIPT]


def test_what_begins_later_may_be_left_out():
    found = read_activities(ranks([compute(0, 1), compute(1, 2), compute(2, 3)]), until_s=2.0)
    assert found.start_s.tolist() == [0.0, 1.0]


def test_a_trace_without_spans_has_no_activities():
    assert len(read_activities(ranks(np.empty(0)))) == 0
