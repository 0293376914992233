import json
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.trace import Kind, Recorder, Spans, Summary, Trace
from paceline.trace.summary import PART_NAMES

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up


def spans(rank: int, *rows: tuple[int, float, float, int], role: str = "worker") -> Spans:
    recorder = Recorder(rank, role)
    for kind, start, end, peer in rows:
        recorder.add(kind, start, end, peer, 0, 0)
    return recorder.pack()


def two_workers_and_a_server() -> Summary:
    fast = spans(0, (Kind.COMPUTE, 0, 4, -1), (Kind.SEND, 4, 5, 2), (Kind.WAIT, 5, 10, 1))
    slow = spans(1, (Kind.COMPUTE, 0, 8, -1), (Kind.RECEIVE, 7, 9, 2), (Kind.UPDATE, 9, 9.5, -1))
    server = spans(2, (Kind.UPDATE, 0, 1, -1), role="server")
    return Trace([slow, fast, server], 10.0).summary()


def test_each_rank_is_told_apart_in_order() -> None:
    fast, slow, server = two_workers_and_a_server().ranks
    assert (fast.rank, fast.role, fast.compute_s, fast.communicate_s, fast.idle_s) == (0, "worker", 4, 1, 5)
    assert (slow.compute_s, slow.communicate_s, slow.update_s, slow.idle_s) == (8, 1, 0.5, 0.5)
    assert (server.role, server.update_s, server.idle_s) == ("server", 1, 9)
    assert fast.share("compute") == 0.4


def test_shares_are_means_over_the_workers() -> None:
    summary = two_workers_and_a_server()
    assert summary.compute_share == pytest.approx(0.6)
    assert summary.communicate_share == pytest.approx(0.1)
    assert summary.update_share == pytest.approx(0.025)
    assert summary.idle_share == pytest.approx(0.275)


def test_without_workers_shares_are_means_over_all() -> None:
    trace = Trace([spans(0, (0, 0, 1, -1), role="stage"), spans(1, (0, 0, 2, -1), role="stage")], 2.0)
    assert trace.summary().compute_share == 0.75


@unhurried
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.floats(0, 100), st.floats(0, 10), st.integers(-1, 3)), max_size=30
    ),
    st.floats(1e-3, 200),
)
def test_the_parts_of_a_rank_sum_to_the_runs_seconds(
    rows: list[tuple[int, float, float, int]], seconds: float
) -> None:
    one = spans(0, *((kind, start, start + long, peer) for kind, start, long, peer in rows))
    summary = Trace([one], seconds).summary()
    assert sum(summary.ranks[0].part_s(part) for part in PART_NAMES) == pytest.approx(seconds)
    assert sum(summary.share(part) for part in PART_NAMES) == pytest.approx(1)
    assert sum(straggler.seconds for straggler in summary.stragglers) <= sum(summary.waits.values()) + 1e-9


def test_the_table_is_aligned_and_names_the_straggler() -> None:
    assert str(two_workers_and_a_server()).splitlines() == [
        "10 s on 3 ranks; parts in s and as shares of the run",
        "rank    role       compute   communicate        update          idle",
        "   0  worker  4.000  40.0%  1.000  10.0%  0.000   0.0%  5.000  50.0%",
        "   1  worker  8.000  80.0%  1.000  10.0%  0.500   5.0%  0.500   5.0%",
        "   2  server  0.000   0.0%  0.000   0.0%  1.000  10.0%  9.000  90.0%",
        "mean  worker         60.0%         10.0%          2.5%         27.5%",
        "rank 1 made the others wait 5 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "cell"), [(20.0, "2.000  10.0%"), (0.02, "2.000"), (2e-5, "2.000"), (0.5, "50.000")]
)
def test_the_table_has_one_unit_which_fits_the_run(seconds: float, cell: str) -> None:
    assert cell in str(Trace([spans(0, (0, 0, seconds / 10, -1))], seconds).summary())


def test_rare_parts_have_a_column_only_if_some_rank_has_them() -> None:
    assert "cancelled" not in str(two_workers_and_a_server())
    table = str(Trace([spans(0, (Kind.CANCELLED, 0, 1, -1), (Kind.SLEEP, 1, 2, -1))], 3.0).summary())
    assert "cancelled" in table
    assert "sleep" in table
    assert "evaluate" not in table


def test_in_a_list_a_summary_is_one_line() -> None:
    shares = "compute 60%, communicate 10%, update 2%, idle 28%"
    assert repr([two_workers_and_a_server()]) == f"[<Summary of 3 ranks, 10 s: {shares}>]"


def test_a_notebook_shows_a_table_and_a_bar_a_rank() -> None:
    root = ElementTree.fromstring(f"<div>{two_workers_and_a_server()._repr_html_()}</div>")
    assert [cell.text for cell in root.iter("th")] == [
        "rank",
        "role",
        "compute",
        "communicate",
        "update",
        "idle",
    ]
    rows = [[cell.text for cell in row] for row in root.iter("tr")][1:]
    assert [row[0] for row in rows] == ["0", "1", "2", "mean"]
    assert rows[0][2] == "4.000  40.0%"
    bars = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert bars[1:4] == ["rank 0", "rank 1", "rank 2"]


def test_of_a_thousand_ranks_a_notebook_shows_some() -> None:
    shown = Trace([spans(r) for r in range(1000)], 1.0).summary()._repr_html_()
    assert shown.count("<tr>") < 50


def test_chance_is_no_straggler() -> None:
    ranks = [spans(r, (Kind.WAIT, r, r + 1, (r + 1) % 4)) for r in range(4)]
    summary = Trace(ranks, 10.0).summary()
    assert len(summary.stragglers) == 4
    assert "made the others wait" not in str(summary)


def test_a_short_wait_is_not_worth_a_sentence() -> None:
    summary = Trace([spans(0, (Kind.WAIT, 0, 0.1, 1)), spans(1)], 10.0).summary()
    assert [straggler.rank for straggler in summary.stragglers] == [1]
    assert "made the others wait" not in str(summary)


def test_of_a_thousand_ranks_the_table_shows_some() -> None:
    lines = str(Trace([spans(r) for r in range(1000)], 1.0).summary()).splitlines()
    assert len(lines) < 50
    assert "… and 968 more ranks" in lines


def test_a_run_of_no_length_and_a_run_of_nobody_have_summaries() -> None:
    for trace in (Trace([], 0.0), Trace([], 1.0), Trace([spans(0, (0, 0, 0, -1))], 0.0)):
        summary = trace.summary()
        assert summary.compute_share == 0.0
        assert "mean" in str(summary)


def test_as_dict_is_json() -> None:
    plain = json.loads(json.dumps(two_workers_and_a_server().as_dict()))
    assert plain["seconds"] == 10
    assert plain["compute_share"] == pytest.approx(0.6)
    assert plain["waits"] == [{"waiter": 0, "awaited": 1, "seconds": 5.0}]
    assert plain["stragglers"] == [{"rank": 1, "seconds": 5.0, "waits": 1}]
    assert plain["ranks"][1]["compute_s"] == 8
