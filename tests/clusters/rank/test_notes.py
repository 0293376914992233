"""The records of a rank are saved and restored."""

import dataclasses

from paceline.clusters.base.outcome import Outcome
from paceline.clusters.rank.notes import Notes, put_together


def an_outcome(rank=0, sent=5):
    return Outcome(
        rank=rank,
        records=[
            {"step": 1, "seconds": 0.5, "metric": None, "extra": {}},
            {
                "step": 2,
                "seconds": 1.0,
                "metric": 0.25,
                "extra": {"consensus": 0.1},
                "loss": 3.0,
                "samples": 8,
            },
        ],
        losses=[(0, 1.5, 4), (1, 1.25, 4)],
        logged=[(0, 4, {"fooled": 0.5})],
        bytes_at=[2, sent],
        bytes_sent=sent,
        messages_sent=3,
        staleness={0: 2, 3: 1},
        lost=[(2, 1)],
    )


def test_an_outcome_comes_back_as_it_was():
    found = Outcome(rank=0)
    Notes().restore(found, *Notes().keep(an_outcome()))
    assert dataclasses.asdict(found) == dataclasses.asdict(an_outcome())


def test_a_longer_one_comes_back_too():
    notes, outcome = Notes(), an_outcome()
    notes.keep(outcome)
    outcome.losses.append((2, 1.0, 4))
    outcome.bytes_at.append(9)
    outcome.records.append({"step": 3, "seconds": 2.0, "metric": None, "extra": {"d_loss": 1.0}})
    found = Outcome(rank=0)
    Notes().restore(found, *notes.keep(outcome))
    assert dataclasses.asdict(found) == dataclasses.asdict(outcome)


def test_several_ranks_are_put_together_as_if_one_had_written_it_all():
    whole = put_together([an_outcome(0, sent=5), an_outcome(1, sent=7)], 0)
    assert whole.losses == [(0, 1.5, 4), (1, 1.25, 4)] * 2
    assert whole.bytes_at == [4, 12]
    assert whole.bytes_sent == 12
    assert whole.staleness == {0: 4, 3: 2}
