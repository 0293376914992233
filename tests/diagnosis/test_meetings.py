import numpy as np

from paceline.diagnosis.meetings import MeetingWaits, find_meetings


def waits(*rows):
    """Waits as (rank, start, end, peer)."""
    rank, start_s, end_s, peer = zip(*rows, strict=True)
    return MeetingWaits(np.array(rank), np.array(start_s), np.array(end_s), np.array(peer))


def test_waits_that_overlap_are_one_meeting():
    found = find_meetings(waits((0, 1.0, 4.0, 2), (1, 2.0, 4.1, 2), (2, 3.9, 4.05, -1)))
    assert found.meeting.tolist() == [0, 0, 0]
    assert found.absent == []
    assert found.number == 1


def test_the_waits_of_one_rank_are_meetings_one_after_another():
    found = find_meetings(
        waits((0, 0.0, 1.0, 1), (1, 0.9, 1.2, -1), (0, 1.1, 3.0, 1), (1, 2.9, 3.0, -1), (0, 5.0, 6.0, 1))
    )
    assert found.meeting.tolist() == [0, 0, 1, 1, 2]
    assert found.number == 3


def test_a_rank_that_came_last_and_did_not_wait_is_a_member_too():
    found = find_meetings(waits((0, 1.0, 4.0, 2), (1, 2.0, 4.0, 2)))
    assert found.meeting.tolist() == [0, 0]
    assert found.absent == [(0, 2, 4.0)]


def test_a_late_awakening_does_not_put_a_rank_into_the_next_meeting():
    # Rank 1 goes on late, when rank 0 has come to the next meeting already.
    found = find_meetings(waits((0, 0.0, 2.0, 1), (1, 1.9, 2.8, -1), (0, 2.5, 4.0, 1), (1, 3.9, 4.0, -1)))
    assert found.meeting.tolist() == [0, 0, 1, 1]


def test_who_begins_to_wait_when_the_others_go_on_waits_for_something_else():
    found = find_meetings(waits((0, 5.0, 8.0, 1), (1, 8.0, 9.0, 0)))
    assert found.meeting.tolist() == [0, 1]
    assert found.absent == [(0, 1, 8.0), (1, 0, 9.0)]


def test_a_wait_without_length_is_in_the_meeting_that_it_ends():
    found = find_meetings(waits((0, 5.0, 8.0, 1), (1, 8.0, 8.0, -1)))
    assert found.meeting.tolist() == [0, 0]
