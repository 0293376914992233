import gc

import pytest

from paceline.clusters.base.gc_pause import gc_paused


def test_the_collector_rests_and_goes_on():
    with gc_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error():
    with pytest.raises(LookupError), gc_paused():
        raise LookupError
    assert gc.isenabled()


def test_a_collector_that_rested_before_still_rests():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_meanwhile_is_not_looked_through_at_once():
    with gc_paused():
        made = [[] for _ in range(5000)]
    assert any(thing is made for thing in gc.get_objects(generation=2))


def test_what_the_caller_has_frozen_stays_so():
    made = []
    gc.freeze()
    try:
        with gc_paused():
            pass
        assert not any(thing is made for thing in gc.get_objects())
    finally:
        gc.unfreeze()
