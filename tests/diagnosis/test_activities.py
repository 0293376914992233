import numpy as np
from traces import compute, ranks, receive, send, span, wait

from paceline.diagnosis.activities import What, read_activities
from paceline.trace import Kind


def test_a_wait_and_the_receipt_that_ends_it_are_one_activity():
    found = read_activities(ranks([wait(1.0, 3.0, 1), receive(3.0, 3.5, 1)], [send(2.0, 3.0, 0)]))
    assert found.what.tolist() == [What.RECEIPT, What.SEND]
    assert (found.start_s[0], found.end_s[0], found.work_s[0]) == (1.0, 3.5, 0.5)
    assert found.waited.tolist() == [True, False]


def test_a_receipt_without_a_wait_found_its_message_there():
    found = read_activities(ranks([receive(3.0, 3.5, 1)], [send(2.0, 3.0, 0)]))
    assert not found.waited[0]


def test_a_wait_for_no_message_is_a_meeting_with_who_came_last():
    found = read_activities(ranks([compute(0, 1), wait(1.0, 4.0, 1)], [compute(0, 4)]))
    members = found.where(What.MEETING)
    assert found.rank[members].tolist() == [0, 1]
    assert found.meeting[members].tolist() == [0, 0]
    assert (found.start_s[members[1]], found.end_s[members[1]]) == (4.0, 4.0)


def test_cancelled_computations_are_left_out():
    found = read_activities(ranks([span(Kind.CANCELLED, 0, 2), compute(2, 3)]))
    assert found.what.tolist() == [What.COMPUTE]


def test_a_rank_that_never_computes_is_a_server():
    assert read_activities(ranks([compute(0, 1)], [send(0, 1, 0)])).servers == {1}
    assert not read_activities(ranks([span(Kind.CANCELLED, 0, 1)], [compute(0, 1)])).servers


def test_a_call_that_waits_and_communicates_in_one_is_cut_by_the_quickest():
    call = (Kind.RECEIVE, -1)
    found = read_activities(
        ranks([compute(0, 1), span(call[0], 1, 5, call[1])], [compute(0, 4), span(call[0], 4, 5, call[1])])
    )
    waited, worked = found.where(What.MEETING), found.where(What.WORK)
    assert (found.end_s[waited] - found.start_s[waited]).tolist() == [3.0, 0.0]
    assert found.work_s[worked].tolist() == [1.0, 1.0]


def test_a_reduction_after_a_barrier_is_work_of_its_own():
    spans = ranks(
        [wait(0, 2, 1), span(Kind.RECEIVE, 2, 3, -1)], [wait(2, 2, -1), span(Kind.RECEIVE, 2, 5, -1)]
    )
    found = read_activities(spans)
    assert found.work_s[found.where(What.WORK)].tolist() == [1.0, 3.0]


def test_of_what_begins_at_one_instant_the_recorded_order_stays():
    found = read_activities(ranks([send(1.0, 2.0, 1), receive(1.0, 1.0, 1)], [compute(0, 1)]))
    assert found.what[:2].tolist() == [What.SEND, What.RECEIPT]


def test_what_begins_later_may_be_left_out():
    found = read_activities(ranks([compute(0, 1), compute(1, 2), compute(2, 3)]), until_s=2.0)
    assert found.start_s.tolist() == [0.0, 1.0]


def test_a_trace_without_spans_has_no_activities():
    assert len(read_activities(ranks(np.empty(0)))) == 0
