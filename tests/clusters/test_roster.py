"""What a driver makes of how its ranks ended."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.clusters.job import Job
from paceline.clusters.outcome import Outcome
from paceline.clusters.roster import Roster
from paceline.errors import LossNotFiniteError, PeerLost


@dataclass(frozen=True)
class Pretended:
    expendable: tuple[str, ...] = ()

    def roles(self, workers: int) -> tuple[str, ...]:
        return ("worker",) * workers


def a_roster(*, expendable: bool = False, ready: bool = True) -> Roster:
    strategy = Pretended(("worker",) if expendable else ())
    roster = Roster(Job(strategy=strategy, roles=("worker",) * 3, seed=0))
    roster.ready.update(range(3) if ready else ())
    return roster


def test_a_run_is_done_when_every_rank_has_brought_something_back():
    roster = a_roster()
    for rank in range(3):
        assert not roster.all_done
        roster.outcomes[rank] = Outcome(rank=rank)
    assert roster.all_done


def test_a_rank_that_can_be_spared_leaves_a_note_and_no_failure():
    roster = a_roster(expendable=True)
    roster.note_loss(2, "killed", step=7)
    assert not roster.failures
    assert roster.outcomes[2].lost == [(2, 7)]


def test_a_rank_that_is_lost_before_the_run_began_is_a_failure_even_so():
    roster = a_roster(expendable=True, ready=False)
    roster.note_loss(2, "killed", step=0)
    assert roster.missing == [0, 1, 2]
    assert isinstance(roster.failures[2], PeerLost)


def test_the_cause_is_the_rank_that_died_and_says_who_waited_for_it():
    roster = a_roster()
    roster.failures[0] = PeerLost(1, "", "rank 0 was waiting")
    assert roster.others_may_say_more
    roster.note_loss(1, "killed by SIGKILL", step=3)
    roster.failures[2] = PeerLost(1, "", "rank 2 was waiting")
    cause = roster.cause()
    assert str(cause) == "rank 1 is lost (killed by SIGKILL); rank 0 was waiting; rank 2 was waiting"


def test_an_error_of_its_own_stands_before_the_losses_that_it_caused():
    roster = a_roster()
    roster.failures[0] = PeerLost(1, "", "rank 0 was waiting")
    roster.failures[1] = LossNotFiniteError(1, 4, float("nan"))
    assert isinstance(roster.cause(), LossNotFiniteError)


def test_one_loss_too_many_names_the_rank_that_could_not_be_spared_any_more():
    roster = a_roster(expendable=True)
    roster.note_loss(2, "killed", step=7)
    roster.failures[0] = PeerLost(2, "", "rank 0 needs two workers")
    assert not roster.others_may_say_more
    assert str(roster.cause()) == "rank 2 is lost (killed); rank 0 needs two workers"
