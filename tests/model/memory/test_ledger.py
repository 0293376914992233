from hypothesis import given
from hypothesis import strategies as st

from paceline.model.memory import KINDS, Ledger, empty_peak


def test_the_peak_is_what_was_held_when_the_total_was_highest():
    ledger = Ledger()
    account = ledger.account()
    account.hold("parameters", 100)
    account.add("activations", 50)
    account.free("activations", 50)
    account.hold("optimizer", 40)
    assert ledger.now == {**empty_peak(), "parameters": 100, "optimizer": 40, "total": 140}
    assert ledger.peak == {
        **empty_peak(),
        "parameters": 100,
        "activations": 50,
        "optimizer": 40,
        "total": 190,
    }


def test_an_account_says_what_it_holds_now_and_not_what_others_hold():
    ledger = Ledger()
    one, other = ledger.account(), ledger.account()
    one.hold("parameters", 10)
    other.hold("parameters", 5)
    one.hold("parameters", 3)
    assert ledger.now["parameters"] == 8
    other.close()
    assert ledger.now["total"] == 3
    assert ledger.peak["total"] == 15


def test_what_is_held_for_a_moment_counts_for_the_peak_alone():
    ledger = Ledger()
    account = ledger.account()
    account.hold("parameters", 10)
    account.touch("activations", 7)
    account.touch("activations", 5)
    assert ledger.now["total"] == 10
    assert ledger.peak["activations"] == 7
    assert ledger.peak["total"] == 17


def test_what_was_there_before_the_training_began_does_not_count():
    ledger = Ledger()
    account = ledger.account()
    account.hold("parameters", 100)
    account.hold("parameters", 25)
    account.begin()
    assert ledger.peak["parameters"] == 25


def test_the_peak_before_a_checkpoint_stays_unless_a_later_one_is_higher():
    ledger = Ledger()
    ledger.take_over({**empty_peak(), "parameters": 50, "total": 50})
    account = ledger.account()
    account.hold("gradients", 20)
    account.begin()
    assert ledger.peak == {**empty_peak(), "parameters": 50, "total": 50}
    account.hold("gradients", 60)
    assert ledger.peak == {**empty_peak(), "gradients": 60, "total": 60}


def test_an_account_takes_what_it_holds_to_another_ledger():
    one, other = Ledger(), Ledger()
    account = one.account()
    account.hold("gradients", 4)
    account.move_to(other)
    account.add("gradients", 2)
    assert one.now["total"] == 0
    assert other.now["gradients"] == 6


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1000)), max_size=30))
def test_the_peak_is_the_largest_total_with_the_optimizer_state_there_from_the_start(steps):
    ledger = Ledger()
    account = ledger.account()
    totals, states = [0], [0]
    for kind, nbytes in steps:
        account.hold(kind, nbytes)
        totals.append(ledger.now["total"] - ledger.now["optimizer"])
        states.append(ledger.now["optimizer"])
    assert ledger.peak["total"] == max(totals) + max(states)
    assert ledger.peak["total"] == sum(ledger.peak[kind] for kind in KINDS)
