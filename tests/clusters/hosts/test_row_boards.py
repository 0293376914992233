"""Rows that ranks publish through a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from clusters.hosts.test_hub import Ends, begin
from processes import wait_until

from paceline.clusters.hosts.row_boards import HubRowBoards
from paceline.clusters.process.window import LINE_WORDS

CONTEXT: Any = object()  # of a rank: only its barriers' waits need one


@pytest.fixture
def boards() -> Iterator[list[HubRowBoards]]:
    """Of two ranks."""
    ends = Ends(encrypt=False)
    begin(ends)
    yield [HubRowBoards(rank, 2, ends.boards[rank], ends.clients[rank]) for rank in range(2)]
    ends.close()


def test_boards_of_two_names_have_rows_of_their_own(boards: list[HubRowBoards]):
    like = {"numbers": torch.empty(3, dtype=torch.float64), "bytes": torch.empty(5, dtype=torch.uint8)}
    for name, row in like.items():
        for rank in range(2):
            boards[rank].find(name).open(CONTEXT, row, forgiving=False)
            boards[rank].find(name).row(rank).fill_(rank + 1)
    for name, row in like.items():
        for rank in range(2):
            expected = torch.tensor([[1], [2]], dtype=row.dtype).expand(2, row.numel())
            assert torch.equal(boards[rank].find(name).tensor, expected)


def test_who_has_shown_nothing_or_not_opened_the_board_has_zeros(boards: list[HubRowBoards]):
    first = boards[0].find("board")
    first.open(CONTEXT, torch.empty(2, dtype=torch.float64), forgiving=False)
    first.row(0).fill_(7.0)
    assert first.tensor.tolist() == [[7.0, 7.0], [0.0, 0.0]]


def test_an_arrival_is_noted_before_the_board_is_opened_and_only_on_its_own(boards: list[HubRowBoards]):
    first = boards[0].find("here")
    first.open(CONTEXT, torch.empty(1), forgiving=False)
    first._client.tell("arrive", {"board": "here", "visit": 1})
    wait_until(lambda: boards[1].find("here").arrivals[0] == 1, "rank 1 knows of the arrival")
    assert boards[1].find("elsewhere").arrivals[0] == 0
    assert boards[1].find("here").arrivals[LINE_WORDS] == 0
