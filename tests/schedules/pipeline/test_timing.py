import pytest

from paceline.schedules.pipeline import ORDERS, Phase, pipeline_order
from paceline.schedules.pipeline.timing import (
    ActivationBytes,
    StageCosts,
    peak_activations,
    pipeline_ends_s,
    steady_ends_s,
)
from paceline.testing.pipeline_timing import activations, time_order

SECONDS = {Phase.FORWARD: 2.0, Phase.INPUTS: 3.0, Phase.WEIGHTS: 1.0, Phase.BACKWARD: 4.0}


def costs(stages, latency_s=0.5, carry_s=0.0):
    by_phase = [
        [SECONDS[phase]] * stages for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.INPUTS, Phase.WEIGHTS)
    ]
    return StageCosts(*by_phase, [(latency_s, carry_s)] * stages)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("microbatches", [3, 8, 13])
def test_it_equals_the_walk_through_the_order(name, microbatches):
    chunks = 2 if name == "interleaved" else 1
    order = pipeline_order(name, 4, microbatches, chunks)
    timing = time_order(order, lambda action, stage: SECONDS[action.phase], latency_s=0.5, chunks=chunks)
    assert pipeline_ends_s(order, costs(4 * chunks)) == pytest.approx([ends[-1] for ends in timing.ends_s])


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("microbatches", [40, 81])
def test_the_steady_state_gives_the_times_of_all_micro_batches(name, microbatches):
    chunks = 2 if name == "interleaved" else 1
    whole = pipeline_ends_s(pipeline_order(name, 4, microbatches, chunks), costs(4 * chunks, carry_s=0.2))
    found = steady_ends_s(name, microbatches, chunks, 4, costs(4 * chunks, carry_s=0.2))
    assert found == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_the_peak_is_the_number_of_stored_activations(name):
    order = pipeline_order(name, 4, 8, 1)
    assert [peak_activations(actions, [ActivationBytes(1.0)]) for actions in order] == list(
        activations(order)
    )
