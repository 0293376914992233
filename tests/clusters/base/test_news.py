"""Incremental news of a rank to its driver."""

from paceline.clusters.base.news import Teller, enter_news, read_news, write_news
from paceline.clusters.base.outcome import Outcome


def test_each_entry_is_told_once():
    outcome, told = Outcome(rank=1), Outcome(rank=1)
    teller = Teller(outcome)
    for step in range(3):
        outcome.losses.append((step, 0.5, 4))
        outcome.logged.append((step, 4, {"accuracy": 1.0}))
        enter_news(told, read_news(write_news(teller.take())))
    assert (told.losses, told.logged) == (outcome.losses, outcome.logged)
    assert teller.take() == {"losses": [], "logged": []}


def test_what_was_written_before_the_first_news_is_told_too():
    """From a rank that resumes from a checkpoint."""
    outcome, told = Outcome(rank=1, updates=[{"step": 1}]), Outcome(rank=1)
    teller = Teller(outcome)
    outcome.updates.append({"step": 3})
    enter_news(told, read_news(write_news(teller.take())))
    assert told.updates == outcome.updates


def test_a_record_of_an_update_has_all_the_rest_in_it():
    outcome = Outcome(rank=1, updates=[{"step": 1}], losses=[(0, 0.5, 4)])
    assert Teller(outcome).take() == {"updates": [{"step": 1}]}
