import pytest
from tasks import WORLDS, a_task

import paceline as pl


@pytest.mark.parametrize("world", WORLDS)
def test_single_runs_one_worker_and_sends_nothing_whatever_the_cluster(world):
    run = pl.train(a_task(), "single", WORLDS[world](4), steps=3)
    assert run.messages_sent == [0]
    assert [spans.role for spans in run.trace.spans] == ["worker"]
    assert run.history[-1].samples == 24
