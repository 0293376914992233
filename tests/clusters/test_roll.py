"""What a driver makes of how its ranks ended."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.clusters.job import Job, Outcome
from paceline.clusters.roll import Roll
from paceline.errors import LossNotFiniteError, PeerLost


@dataclass(frozen=True)
class Pretended:
    expendable: tuple[str, ...] = ()

    def roles(self, workers: int) -> tuple[str, ...]:
        return ("worker",) * workers


def a_roll(*, expendable: bool = False, ready: bool = True) -> Roll:
    strategy = Pretended(("worker",) if expendable else ())
    roll = Roll(Job(strategy=strategy, roles=("worker",) * 3, seed=0))
    roll.ready.update(range(3) if ready else ())
    return roll


def test_a_run_is_done_when_every_rank_has_brought_something_back():
    roll = a_roll()
    for rank in range(3):
        assert not roll.all_done
        roll.outcomes[rank] = Outcome(rank=rank)
    assert roll.all_done


def test_a_rank_that_can_be_spared_leaves_a_note_and_no_failure():
    roll = a_roll(expendable=True)
    roll.note_loss(2, "killed", step=7)
    assert not roll.failures
    assert roll.outcomes[2].lost == [(2, 7)]


def test_a_rank_that_is_lost_before_the_run_began_is_a_failure_even_so():
    roll = a_roll(expendable=True, ready=False)
    roll.note_loss(2, "killed", step=0)
    assert roll.missing == [0, 1, 2]
    assert isinstance(roll.failures[2], PeerLost)


def test_the_cause_is_the_rank_that_died_and_says_who_waited_for_it():
    roll = a_roll()
    roll.failures[0] = PeerLost(1, "", "rank 0 was waiting")
    assert roll.others_may_say_more
    roll.note_loss(1, "killed by SIGKILL", step=3)
    roll.failures[2] = PeerLost(1, "", "rank 2 was waiting")
    cause = roll.cause()
    assert str(cause) == "rank 1 is lost (killed by SIGKILL); rank 0 was waiting; rank 2 was waiting"


def test_an_error_of_its_own_stands_before_the_losses_that_it_caused():
    roll = a_roll()
    roll.failures[0] = PeerLost(1, "", "rank 0 was waiting")
    roll.failures[1] = LossNotFiniteError(1, 4, float("nan"))
    assert isinstance(roll.cause(), LossNotFiniteError)


def test_one_loss_too_many_names_the_rank_that_could_not_be_spared_any_more():
    roll = a_roll(expendable=True)
    roll.note_loss(2, "killed", step=7)
    roll.failures[0] = PeerLost(2, "", "rank 0 needs two workers")
    assert not roll.others_may_say_more
    assert str(roll.cause()) == "rank 2 is lost (killed); rank 0 needs two workers"
