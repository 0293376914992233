from report.cases import handmade, trained

from paceline.report.matrices import bytes_matrix, waits_matrix
from paceline.trace import Kind, Trace


def test_waits_are_those_of_the_summary():
    summary = trained("k-sync:k=3").trace.summary()
    matrix = waits_matrix(summary)
    assert {(row, column): value for row, column, value in matrix["cells"]} == {
        pair: seconds for pair, seconds in summary.waits.items() if seconds > 0
    }
    assert matrix["labels"] == ["0", "1", "2", "3", "4"]


def test_bytes_are_those_that_the_ranks_sent():
    run = trained("all-reduce:algorithm=ring")
    matrix = bytes_matrix(run.trace)
    assert [(row, column) for row, column, _ in matrix["cells"]] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert [value for *_, value in matrix["cells"]] == run.bytes_sent


def test_ranks_of_a_large_run_share_rows_and_columns():
    rows = [(rank, Kind.SEND, 0.0, 1.0, (rank + 1) % 128, 10) for rank in range(128)]
    matrix = bytes_matrix(handmade(rows, ranks=128).trace)
    assert matrix["grouped"] == 2
    assert matrix["labels"][:2] == ["0-1", "2-3"]
    assert sum(value for *_, value in matrix["cells"]) == 1280
    assert [0, 0, 10] in matrix["cells"]
    assert [0, 1, 10] in matrix["cells"]


def test_a_send_to_nobody_in_particular_is_in_no_cell():
    assert bytes_matrix(handmade([(0, Kind.SEND, 0.0, 1.0, -1, 10)]).trace)["cells"] == []


def test_a_peer_that_left_no_trace_still_has_a_row():
    assert bytes_matrix(handmade([(0, Kind.SEND, 0.0, 1.0, 5, 10)]).trace)["labels"][-1] == "5"
    waits = handmade([(0, Kind.WAIT, 0.0, 1.0, 5)]).trace.summary()
    assert waits_matrix(waits)["labels"][-1] == "5"


def test_a_trace_without_ranks_has_empty_matrices():
    empty = Trace([], 1.0)
    assert bytes_matrix(empty) == waits_matrix(empty.summary()) == {"labels": [], "grouped": 1, "cells": []}
