"""A rank's end of its connection to the hub: one socket to ask by, and one where a thread hears what the hub says.

The thread keeps this process's copy of the run's status board, answers the hub's requests for the time, and tells
the hub again and again that this rank is alive and how far it has come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from paceline.clusters.hosts.wire import ASKING, HEARING, LetterReader, limit_intake, write_letter
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError, FrameError, PeerLost, RunError
from paceline.links.credentials import Gate
from paceline.links.seats import Seat

__all__ = ["BEAT_S", "HubClient", "patience_s"]

_log = logging.getLogger("paceline")

BEAT_S = 0.25
_PATIENCE_S = 15.0


def patience_s(deadline_s: float) -> float:
    """After how long without a sign of life a process, or its host, is taken for lost."""
    return min(_PATIENCE_S, deadline_s / 2)


class HubClient:
    """One rank's end. `takers` are called in the thread, with letters that the client itself does not handle."""

    def __init__(
        self,
        rank: int,
        board: StatusBoard,
        context: zmq.Context[zmq.Socket[bytes]],
        gate: Gate,
        hub: Seat,
        *,
        deadline_s: float,
    ) -> None:
        self._rank = rank
        self._board = board
        self._deadline_s = deadline_s
        self._asks = _Socket(context, gate, hub, rank, ASKING)
        self._hears = _Socket(context, gate, hub, rank, HEARING)
        self._requests = 0
        self._start_s = 0.0
        self._leaves = False  # whether the program has told how it ended
        self._parting: Letter | None = None
        self._go, self._parted, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._heard_s = time.monotonic()
        self.cut = False
        """Whether the hub has not been heard for so long that it is taken for lost."""
        self.takers: dict[str, Callable[[Letter], tuple[dict[str, Any], Sequence[Any]] | None]] = {}
        """By a letter's word: who is called with it. What the call returns is sent back as the answer."""
        self._thread = threading.Thread(target=self._listen, name="hub-client", daemon=True)
        self._thread.start()

    # The program's side

    def tell(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        self._asks.send(word, values, blobs)

    def ask(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> Letter:
        """Tell, and wait for the answer."""
        self._requests += 1
        self.tell(word, {**(values or {}), "request": self._requests}, blobs)
        deadline_s = time.monotonic() + self._deadline_s
        while True:
            letter = self._asks.receive() if self._asks.has_news(BEAT_S) else None
            # It may be the late answer to an earlier request.
            if letter is not None and letter.values.get("request") == self._requests:
                return letter
            self.check()
            if time.monotonic() > deadline_s:
                raise DeadlineError(self._rank, f"asking for {word}", "the driver", self._deadline_s)

    def wait_for_go(self) -> float:
        """Until all ranks are ready; when the run began, by this host's monotonic clock."""
        while not self._go.wait(BEAT_S):
            self.check()
            if self._parted.is_set():
                raise RunError(f"the run ended before rank {self._rank} was told to begin")
        return self._start_s

    def wait_to_part(self) -> Letter | None:
        """Wait until nobody needs this process any more; return the hub's last letter, if the hub is still there.

        The hub is told that this rank waits for nothing else, so that it does not wait for a letter that was lost.
        """
        self._leaves = True
        while not self._parted.wait(BEAT_S) and not self.cut:
            pass
        return self._parting

    def check(self) -> None:
        """Raise if the hub is gone."""
        if self.cut:
            raise PeerLost(0, "the driver of the run is gone", f"rank {self._rank} had heard nothing from it")

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._asks.close()

    # The thread's side

    def _listen(self) -> None:
        next_beat_s = time.monotonic()
        while not self._closing.is_set():
            wait_s = next_beat_s - time.monotonic()
            if wait_s <= 0:
                news = {"leaves": self._leaves, "hears": self._hears.reader.offset}
                self._hears.send("beat", {**self._board.read_own(self._rank), **news})
                next_beat_s = time.monotonic() + BEAT_S
                self._look_for_the_hub()
            elif self._hears.has_news(wait_s):
                self._heard_s = time.monotonic()
                if letter := self._hears.receive():
                    self._take(letter)
        self._hears.close()

    def _look_for_the_hub(self) -> None:
        if not self.cut and time.monotonic() - self._heard_s > patience_s(self._deadline_s):
            self.cut = True
            for rank in range(self._board.ranks):
                if rank != self._rank:
                    self._board.set_status(rank, Status.LOST)
            self._board.bells.ring(self._rank)

    def _take(self, letter: Letter) -> None:
        values = letter.values
        if letter.word == "ping":
            self._answer(letter, {"answer_s": time.monotonic(), **values})
        elif letter.word == "go":
            self._start_s = values["start_s"]
            self._go.set()
        elif letter.word == "status":
            self._board.set_status(values["rank"], Status(values["status"]))
            self._board.bells.ring(self._rank)
        elif letter.word == "last_step":
            self._board.last_step = values["last_step"]
            self._answer(letter, values)
        elif letter.word == "stop":
            self._board.stop = True
        elif letter.word == "said":
            self._board.say(values["leg"], values["word"])
            self._answer(letter, values)
        elif letter.word == "metric":
            self._board.metric = values["metric"]
            self._answer(letter, values)
        elif letter.word == "part":
            self._parting = letter
            self._answer(letter, {})
            self._parted.set()
        elif letter.word in self.takers:
            answer = self.takers[letter.word](letter)
            if answer is not None:
                self._answer(letter, {**values, **answer[0]}, answer[1])

    def _answer(self, letter: Letter, values: dict[str, Any], blobs: Sequence[Any] = ()) -> None:
        self._hears.send(letter.word, values, blobs)


class _Socket:
    """One of a rank's two connections to the hub."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], gate: Gate, hub: Seat, rank: int, kind: bytes
    ) -> None:
        self._name = kind + str(rank).encode()
        self.reader = LetterReader()
        self._socket = context.socket(zmq.DEALER)
        self._socket.routing_id = self._name
        self._socket.sndhwm = 0
        limit_intake(self._socket)
        gate.introduce(self._socket, str(rank), hub.public_key)
        self._socket.connect(hub.address)

    def send(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        for piece in write_letter(word, values, blobs):
            self._socket.send(piece)

    def has_news(self, timeout_s: float) -> bool:
        return bool(self._socket.poll(int(timeout_s * 1000) + 1))

    def receive(self) -> Letter | None:
        """Take the piece of a letter that is there; the letter, if it was the last."""
        try:
            return self.reader.take(self._socket.recv(copy=False).buffer)
        except FrameError as error:  # the hub sends none that is wrong, but a broken connection loses some
            _log.warning("%r lost a letter from the hub: %s", self._name, error)
            return None

    def close(self) -> None:
        self._socket.close(linger=1000)
