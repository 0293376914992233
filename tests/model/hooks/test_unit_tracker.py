"""Events of a computation: needed units, following units, and complete gradients."""

import pytest

from paceline.errors import RunError
from paceline.model.hooks.unit_tracker import UnitTracker

FORWARD = (0, 1, 2)


@pytest.fixture
def events():
    return []


def a_tracker(*, frees=True):
    return UnitTracker([10, 11, 12], [1, 1, 1], frees_parameters=frees)


def call(tracker, *units):
    tracker.enter(units)
    tracker.leave()


def test_a_block_needs_its_unit_while_it_is_called(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    for unit in FORWARD:
        call(tracker, unit)
    assert [event.needed for event in events] == [[10], [11], [12]]


def test_an_outer_block_keeps_its_unit(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    tracker.enter([0])
    call(tracker, 1)
    call(tracker, 2)
    tracker.leave()
    assert [event.needed for event in events] == [[10], [10, 11], [10, 12]]


def test_a_unit_that_is_here_is_not_announced_again(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    call(tracker, 0)
    call(tracker, 0)
    assert len(events) == 1


def test_a_parameter_read_outside_of_its_block_stays_to_the_end_of_the_pass(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    tracker.use([2])
    call(tracker, 0)
    assert [event.needed for event in events] == [[12], [10, 12]]


def test_the_first_guess_is_the_order_of_registration(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    for unit in FORWARD:
        call(tracker, unit)
    assert [event.following for event in events] == [[11], [12], [11]]


def test_later_the_order_of_the_micro_batch_before_is_expected(events):
    tracker = a_tracker()
    for _ in range(2):
        events.clear()
        tracker.begin(events.append)
        for unit in (2, 0, 1):
            call(tracker, unit)
        tracker.end()
    assert [list(event.following) for event in events] == [[10], [11], [], []]


def test_a_complete_gradient_is_reported_with_the_next_event(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    tracker.begin_backward()
    tracker.take_gradient(2)
    tracker.use_in_backward([1])
    tracker.end()
    assert [event.completed for event in events] == [[12], [11, 10]]
    assert [event.is_last for event in events] == [False, True]


def test_it_is_reported_at_once_if_parameters_stay(events):
    tracker = a_tracker(frees=False)
    tracker.begin(events.append)
    for unit in FORWARD:
        call(tracker, unit)
    tracker.begin_backward()
    tracker.take_gradient(2)
    assert [(event.needed, event.completed) for event in events] == [([], [12])]


def test_a_gradient_after_its_unit_was_reduced_is_an_error(events):
    tracker = a_tracker()
    tracker.begin(events.append)
    tracker.begin_backward()
    tracker.take_gradient(2)
    with pytest.raises(RunError):
        tracker.take_gradient(2)


def test_hooks_do_nothing_outside_of_a_pass(events):
    tracker = a_tracker()
    call(tracker, 0)
    tracker.use([1])
    assert not tracker.is_active
    assert not events
