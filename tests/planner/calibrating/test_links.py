"""Links fitted to measured times of messages, on links with known costs."""

import pytest

import paceline as pl
from paceline.planner.calibrating.links import LinkProgram, fitted


@pytest.mark.parametrize("message", [0.0, 40e-6])
def test_a_known_link_is_found(message):
    link = pl.Link("10Gbps", "100us", message)
    cluster = pl.Simulated(workers=4, link=link, compute=pl.times.Constant(1))
    program = LinkProgram(counts=[2, 4], limit_s=0.0, has_windows=False)
    for found in fitted("tcp", [2, 4], pl.run_program(program, cluster).results):
        assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-6)
        assert found.latency_s + found.message_s == pytest.approx(link.seconds(0), rel=1e-6)
        # A stream of 32 messages and its answer: the latencies of its two ends remain.
        assert message <= found.message_s <= message + 2 * link.latency_s / 33 + 1e-6
        assert found.residual < 1e-6


def test_reads_and_barriers_of_a_window_are_found():
    memory = pl.Link("20Gbps", "7us")
    cluster = pl.Simulated(workers=3, link="shared-memory", inside=memory, compute=pl.times.Constant(1))
    program = LinkProgram(counts=[2], limit_s=0.0, has_windows=True)
    *_, window = fitted("shared-memory", [2], pl.run_program(program, cluster).results)
    assert (window.kind, window.ranks) == ("window", 3)
    assert window.bytes_per_s == pytest.approx(memory.bytes_per_s, rel=1e-6)
    assert window.latency_s == pytest.approx(memory.latency_s)
