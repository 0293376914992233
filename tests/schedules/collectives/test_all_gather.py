from __future__ import annotations

from paceline.schedules.collectives import all_gather
from paceline.schedules.collectives.steps import Recv, Send


def test_a_rank_passes_on_what_it_got_in_the_round_before():
    rounds = all_gather.schedule(3, 6).rounds
    sent = [step.chunks for steps in rounds for step in steps if isinstance(step, Send)]
    got = [step.chunks for steps in rounds for step in steps if isinstance(step, Recv)]
    assert sent[0].start == 3
    assert sent[1:] == got[:-1]
