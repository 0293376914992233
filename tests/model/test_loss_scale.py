"""The loss scale of one rank: when it changes, and what it counts."""

import torch

from paceline.model.loss_scale import NAME, LossScale


def after(*overflows, applied=True):
    scale = LossScale()
    for overflowed in overflows:
        scale.begin()
        scale.end("layer.weight" if overflowed else None)
        if applied:
            scale.note_update(overflowed=overflowed)
    return scale


def test_an_overflow_halves_the_scale_and_is_counted():
    scale = after(True, True, False)
    assert scale.value == 2.0**14
    assert scale.skipped == 2
    assert scale.cause == "layer.weight"


def test_the_scale_doubles_after_2000_gradients_without_an_overflow():
    assert after(*[False] * 1999).value == 2.0**16
    assert after(*[False] * 2000).value == 2.0**17
    assert after(*[False] * 1999, True, *[False] * 1999).value == 2.0**15


def test_an_overflow_on_another_rank_changes_the_scale_too():
    scale = LossScale()
    scale.begin()
    scale.end(None)
    scale.note_update(overflowed=True)
    assert (scale.value, scale.cause) == (2.0**15, "")


def test_a_rank_that_updates_nothing_changes_its_scale_by_its_own_overflows():
    scale = after(True, True, applied=False)
    scale.begin()
    assert scale.value == 2.0**14
    assert scale.skipped == 0


def test_a_server_that_computes_nothing_counts_only():
    scale = LossScale()
    scale.note_update(overflowed=True)
    assert (scale.value, scale.skipped) == (2.0**16, 1)


def test_a_scale_below_one_is_too_small():
    assert not after(*[True] * 16).is_too_small  # 1
    assert after(*[True] * 17).is_too_small


def test_the_numbers_are_in_the_state_of_the_rank():
    states: dict[str, torch.Tensor] = {}
    scale = LossScale()
    scale.keep_in(states)
    states[NAME] = after(True)._numbers  # as a restored rank does
    assert scale.value == 2.0**15
