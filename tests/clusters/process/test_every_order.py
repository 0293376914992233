"""Window barriers and the status board, in every order of accesses: waiting ranks continue, for the right reason."""

import random

import pytest
import torch
from links.explorer import every_order, random_orders
from refusals import raised

from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.clusters.process.waits import Waits
from paceline.clusters.process.window import LocalWindow
from paceline.errors import PeerLost
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import CACHE_LINE, aligned
from paceline.links.port import Port

LIKE = torch.zeros(1)


class Rank:
    """The part of a rank's context that windows, ports and waits use."""

    in_background = False

    def __init__(self, rank, board):
        self.rank, self.board = rank, board
        self.waits = Waits(rank, board, deadline_s=1e9)
        self.waits._spin_s = 0.0  # by the clock: no order of this explorer's

    def now(self):
        return 0.0

    def span(self, *_, message):
        pass

    def is_lost(self, rank):
        return self.board.status(rank) == Status.LOST

    def wait(self, operation):
        self.waits.until_done(operation, 0)
        operation.take()

    def start(self, operation):
        self.waits.begin(operation)


def make_ranks(order, count):
    board = StatusBoard(order.memory(StatusBoard.nbytes(count)), count)
    return [Rank(rank, board) for rank in range(count)]


def explore(scenario, preemptions=2):
    for delayed in (False, True):
        every_order(scenario, preemptions=preemptions, delayed=delayed)
        random_orders(scenario, random.Random(0), 100, delayed=delayed)


@pytest.mark.parametrize(
    ("count", "preemptions"),
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 3), (3, 1)])],
)
def test_nobody_leaves_a_barrier_before_all_have_come(count, preemptions):
    def scenario(order):
        ranks = make_ranks(order, count)
        memory = order.memory(CACHE_LINE * count + count * aligned(LIKE.nbytes))
        arrived = [0] * count

        def visit(rank):
            window = LocalWindow(rank, range(count), memory, count, LIKE)
            for number in (1, 2):
                arrived[rank.rank] = number
                rank.wait(window.barrier())
                assert min(arrived) >= number

        order.run(**{f"rank{rank.rank}": lambda rank=rank: visit(rank) for rank in ranks})

    explore(scenario, preemptions)


def test_a_forgiving_barrier_goes_on_without_one_who_is_lost():
    def scenario(order):
        ranks = make_ranks(order, 3)
        memory = order.memory(CACHE_LINE * 3 + 3 * aligned(LIKE.nbytes))

        def visit(rank):
            window = LocalWindow(rank, range(3), memory, 3, LIKE)
            window.forgiving = True
            rank.wait(window.barrier())

        def driver():
            ranks[0].board.set_status(2, Status.LOST)
            ranks[0].board.bells.ring_all()

        order.run(first=lambda: visit(ranks[0]), second=lambda: visit(ranks[1]), driver=driver)

    explore(scenario, preemptions=1)


def joined(order, count=2):
    ranks = make_ranks(order, count)
    rings = order.memory(RingWays.nbytes(count))
    for rank in ranks:
        bells = rank.board.bells
        ways = RingWays(rank.rank, count, rings, bells)
        rank.port = Port(rank.rank, count, ways, bells, lambda _: None, lambda _: None)
    return ranks


@pytest.fixture
def small_rings(monkeypatch):
    monkeypatch.setattr("paceline.links.memory.rings.RING_BYTES", 512)
    monkeypatch.setattr("paceline.links.memory.rings.PIECE_BYTES", 128)
    monkeypatch.setattr("paceline.links.memory.rings.CHANNEL_BYTES", 2 * CACHE_LINE + 512)
    monkeypatch.setattr("paceline.links.memory.ring_ways.CHANNEL_BYTES", 2 * CACHE_LINE + 512)


@pytest.mark.usefixtures("small_rings")
def test_who_waits_for_a_rank_that_is_lost_hears_of_it():
    def scenario(order):
        ranks = joined(order)

        def reader():
            with raised(PeerLost, rank=1):
                ranks[0].wait(ranks[0].port.recv(ranks[0], 1, None, "copy", 0))

        def driver():
            ranks[0].board.set_status(1, Status.LOST)
            ranks[0].board.bells.ring_all()

        order.run(reader=reader, driver=driver)

    explore(scenario, preemptions=3)


@pytest.mark.usefixtures("small_rings")
def test_the_last_word_of_a_rank_that_has_ended_is_heard():
    def scenario(order):
        ranks, heard = joined(order), []

        def reader():
            receiving = ranks[0].port.recv(ranks[0], 1, None, "copy", 0)
            ranks[0].wait(receiving)
            heard.append(receiving.result.tensor.item())

        def writer_then_driver():
            ranks[1].port.send(ranks[1], 0, torch.tensor([7.0]), 0, 0).poll()
            ranks[1].board.set_status(1, Status.FINISHED)
            ranks[1].board.bells.ring_all()

        order.run(reader=reader, writer=writer_then_driver)
        assert heard == [7.0]

    explore(scenario)
