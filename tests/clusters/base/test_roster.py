"""The driver's view of how its ranks ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.clusters.base.job import Job
from paceline.clusters.base.news import write_news
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.base.roster import Roster
from paceline.errors import (
    DeadlineError,
    GradientNotFiniteError,
    LossNotFiniteError,
    MismatchError,
    OutOfMemoryError,
    PeerLost,
    WorkerError,
)


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


def test_what_a_lost_rank_has_told_counts():
    roster = a_roster(expendable=True)
    roster.note_news(1, write_news({"losses": [(0, 0.5, 4)], "logged": []}))
    roster.note_news(1, write_news({"losses": [(1, 0.25, 4)], "logged": [(1, 4, {"accuracy": 1.0})]}))
    roster.do_without(1, "killed", 7)
    told = roster.outcomes[1]
    assert (told.losses, told.logged) == ([(0, 0.5, 4), (1, 0.25, 4)], [(1, 4, {"accuracy": 1.0})])
    assert told.lost == [(1, 7)]


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


def test_a_rank_that_can_be_spared_may_be_lost_before_the_run_begins():
    roster = a_roster(expendable=True, ready=False)
    roster.note_loss(2, "killed", step=0)
    assert not roster.failures
    assert roster.missing == [0, 1]
    roster.ready.update([0, 1])
    assert roster.all_ready


def test_a_rank_that_cannot_be_spared_is_a_failure_before_the_run_begins():
    roster = a_roster(expendable=True, ready=False)
    roster.note_loss(0, "killed", step=0)
    assert isinstance(roster.failures[0], PeerLost)


def test_the_cause_is_the_rank_that_died_and_says_who_waited_for_it():
    roster = a_roster()
    roster.failures[0] = PeerLost(1, "", "rank 0 was waiting")
    assert roster.others_may_say_more
    roster.note_loss(1, "killed by SIGKILL", step=3)
    roster.failures[2] = PeerLost(1, "", "rank 2 was waiting")
    cause = roster.cause()
    assert str(cause) == "rank 1 is lost (killed by SIGKILL); rank 0 was waiting; rank 2 was waiting"


def test_every_error_says_what_the_ranks_it_names_hold():
    roster = a_roster()
    roster.holds.update({0: "stage 0 of 2: layers 0 … 3", 1: "stage 1 of 2: layers 4 … 7"})
    held = "rank 1 (stage 1 of 2: layers 4 … 7)"
    said = {
        WorkerError(1, 7, "Traceback"): f"{held} failed in step 7",
        OutOfMemoryError(1, 7, "Traceback", "48 MiB"): f"{held} is out of memory in step 7",
        LossNotFiniteError(1, 7, math.inf): f"the loss is inf on {held} in step 7",
        GradientNotFiniteError(1, 7, "4.weight"): f"not finite on {held} in step 7",
        DeadlineError(
            0, "recv", "rank 1", 5.0
        ): f"(stage 0 of 2: layers 0 … 3) waited 5 s in recv for {held}",
        DeadlineError(
            -1, "the end of the run", "rank 1", 5.0
        ): f"the driver waited 5 s in the end of the run for {held}",
        PeerLost(1, "killed by SIGKILL"): f"{held} is lost (killed by SIGKILL)",
        MismatchError(1, "float32", 2, "float64"): f"{held} sent float32, but rank 2 expected float64",
    }
    for error, words in said.items():
        roster.failures[0] = error
        assert words in str(roster.cause())


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
