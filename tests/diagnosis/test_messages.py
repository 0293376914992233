import math

import pytest
from traces import compute, ranks, receive, send, wait

from paceline.diagnosis.activities import read_activities
from paceline.diagnosis.messages import match_messages


def matched(*spans):
    activities = read_activities(ranks(*spans))
    found = match_messages(activities)
    pairs = zip(found.send, found.receipt, strict=True)
    return [(float(activities.start_s[s]), float(activities.end_s[r])) for s, r in pairs], found


def test_the_nth_message_of_a_size_is_the_nth_received():
    sends = [send(0, 1, 1, 8), send(1, 2, 1, 80), send(2, 3, 1, 8)]
    receipts = [receive(5, 6, 0, 80), receive(6, 7, 0, 8), receive(7, 8, 0, 8)]
    pairs, _ = matched([compute(0, 0.5), *sends], [compute(0, 5), *receipts])
    assert sorted(pairs) == [(0, 7), (1, 6), (2, 8)]


def test_a_message_that_nobody_received_is_left_out():
    pairs, _ = matched([compute(0, 1), send(1, 2, 1), send(3, 4, 1)], [compute(0, 1), receive(2, 3, 0)])
    assert pairs == [(1, 3)]


def test_a_receipt_before_its_send_is_no_message():
    pairs, _ = matched([compute(0, 1), send(5, 6, 1)], [compute(0, 1), receive(2, 3, 0)])
    assert pairs == []


def test_a_message_travels_as_long_as_the_quickest_that_was_waited_for():
    _, found = matched(
        [compute(0, 1), send(1, 2, 1), send(3, 4, 1)],
        [wait(0, 2, 0), receive(2, 3, 0), wait(3, 6, 0), receive(6, 7, 0)],
    )
    assert found.travel_s.tolist() == [2.0, 2.0]
    assert found.carry_s.tolist() == [1.0, 1.0]
    assert found.late_s.tolist() == [0.0, 2.0]


def test_a_message_that_stood_in_a_queue_is_not_late():
    sender = [compute(0, 1), send(1, 2, 2)]
    receiver = [wait(0, 2, 0), receive(2, 3, 0), wait(2, 3, 1), receive(3, 4, 1)]
    _, found = matched(sender, sender, [compute(0, 0), *receiver])
    assert found.late_s.tolist() == pytest.approx([0.0, 0.0])


def test_a_send_that_waited_for_its_receiver_is_told_from_one_that_did_not():
    sends = [send(0, 1, 1), send(2, 9, 1)]
    _, found = matched([compute(0, 0), *sends], [wait(0, 0.5, 0), receive(0.5, 1, 0), receive(8, 9, 0)])
    assert math.isnan(found.sending_s[0])
    assert found.sending_s[1] == 1.0
