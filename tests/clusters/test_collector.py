import gc

import pytest

from paceline.clusters.collector import paused_collector


def test_the_collector_rests_and_goes_on():
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error():
    with pytest.raises(LookupError), paused_collector():
        raise LookupError
    assert gc.isenabled()


def test_a_collector_that_rested_before_still_rests():
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
