import math

import pytest
from traces import compute, ranks, receive, received, send

from paceline.analysis.diagnosis.activities import read_activities
from paceline.analysis.diagnosis.messages import match_messages


def matched(*spans):
    activities = read_activities(ranks(*spans))
    found = match_messages(activities)
    pairs = zip(found.send, found.receipt, strict=True)
    return [(float(activities.start_s[s]), float(activities.end_s[r])) for s, r in pairs], found


def test_a_message_has_the_same_id_at_both_ends_in_whatever_order_it_is_received():
    sends = [send(n, n + 1, 1, 8, message=n) for n in range(3)]
    receipts = [receive(5, 6, 0, message=1), receive(6, 7, 0, message=2), receive(7, 8, 0, message=0)]
    pairs, _ = matched([compute(0, 0.5), *sends], [compute(0, 5), *receipts])
    assert sorted(pairs) == [(0, 8), (1, 6), (2, 7)]


def test_a_message_that_nobody_received_is_left_out():
    sends = [send(1, 2, 1, message=0), send(3, 4, 1, message=1)]
    pairs, _ = matched([compute(0, 1), *sends], [compute(0, 1), receive(4, 5, 0, message=1)])
    assert pairs == [(3, 5)]


def test_a_message_of_a_rank_without_a_trace_is_left_out():
    pairs, _ = matched([compute(0, 1), receive(2, 3, 1, message=7)])
    assert pairs == []


def test_a_message_travels_as_long_as_the_quickest_that_was_waited_for():
    _, found = matched(
        [compute(0, 1), send(1, 2, 1, message=0), send(3, 4, 1, message=1)],
        [*received(0, 2, 3, 0, message=0), *received(3, 6, 7, 0, message=1)],
    )
    assert found.travel_s.tolist() == [2.0, 2.0]
    assert found.carry_s.tolist() == [1.0, 1.0]
    assert found.late_s.tolist() == [0.0, 2.0]


def test_a_message_that_stood_in_a_queue_is_not_late():
    senders = [[compute(0, 1), send(1, 2, 2, message=n)] for n in range(2)]
    receiver = [*received(0, 2, 3, 0, message=0), *received(2, 3, 4, 1, message=1)]
    _, found = matched(*senders, [compute(0, 0), *receiver])
    assert found.late_s.tolist() == pytest.approx([0.0, 0.0])


def test_a_send_that_waited_for_its_receiver_is_told_from_one_that_did_not():
    sends = [send(0, 1, 1, message=0), send(2, 9, 1, message=1)]
    receipts = [*received(0, 0.5, 1, 0, message=0), receive(8, 9, 0, message=1)]
    _, found = matched([compute(0, 0), *sends], receipts)
    assert math.isnan(found.sending_s[0])
    assert found.sending_s[1] == 1.0
