"""A rank's connections to the hub: one for requests, and one on which a thread receives messages from the hub.

The thread updates this process's copy of the status board, answers time requests, and sends heartbeats with the rank's
progress.
"""

from __future__ import annotations

import contextlib
import select
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from paceline.clusters.base.silence import patience_s
from paceline.clusters.hosts.wire import LetterConnection
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError, FrameError, PeerLost, RunError
from paceline.links.tcp.address import PeerAddress
from paceline.links.tcp.handshake import Authenticator, Channel
from paceline.links.tcp.streams import open_stream
from paceline.system import interrupts

BEAT_S = 0.25
_RETRY_S = 0.05
_CLOSED_S = 1.0  # time to read messages that arrived before the hub closed its connection


class HubClient:
    """Hub client of one rank. The thread calls `takers` for messages that the client does not handle."""

    def __init__(
        self,
        rank: int,
        board: StatusBoard,
        authenticator: Authenticator,
        hub: PeerAddress,
        *,
        deadline_s: float,
    ) -> None:
        self._rank = rank
        self._board = board
        self._deadline_s = deadline_s
        self._asks = HubConnection(rank, authenticator, hub, Channel.ASK, deadline_s)
        self._hears = HubConnection(rank, authenticator, hub, Channel.HEAR, deadline_s)
        self._requests = 0
        self._start_s = 0.0
        self._leaves = False  # whether the program has reported how it ended
        self._parting: Letter | None = None
        self._go, self._parted, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._heard_s = time.monotonic()
        self.cut = False
        """Whether the hub counts as lost because it has been silent for too long."""
        self.takers: dict[str, Callable[[Letter], tuple[dict[str, Any], Sequence[Any]] | None]] = {}
        """Handlers by message word. The return value of a handler is sent back as the answer."""
        self._thread = threading.Thread(target=self._listen, name="hub-client", daemon=True)
        self._thread.start()

    # Called by the program

    def tell(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        self._asks.send(word, values, blobs)

    def ask(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> Letter:
        """Send a request and wait for the answer."""
        self._requests += 1
        self.tell(word, {**(values or {}), "request": self._requests}, blobs)
        deadline_s = time.monotonic() + self._deadline_s
        while True:
            interrupts.safe_point()
            letter = self._asks.receive(BEAT_S)
            # The message may be the late answer to an earlier request.
            if letter is not None and letter.values.get("request") == self._requests:
                return letter
            self.check()
            if time.monotonic() > deadline_s:
                raise DeadlineError(self._rank, f"asking for {word}", "the driver", self._deadline_s)

    def wait_for_go(self) -> float:
        """Wait until all ranks are ready. Return the start of the run on this host's monotonic clock."""
        while not self._go.wait(BEAT_S):
            interrupts.safe_point()
            self.check()
            if self._parted.is_set():
                raise RunError(f"the run ended before rank {self._rank} could start")
        return self._start_s

    def wait_to_part(self) -> Letter | None:
        """Wait until no other rank needs this process. Return the hub's last message, or None if the hub is lost.

        The hub is notified that this rank has sent everything, so that it does not wait for a message that was lost.
        """
        self._leaves = True
        while not self._parted.wait(BEAT_S) and not self.cut:
            interrupts.safe_point()
        return self._parting

    def check(self) -> None:
        """Raise an error if the hub is lost."""
        if self.cut:
            raise PeerLost(0, "the driver of the run is lost", f"rank {self._rank} received nothing from it")

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self._deadline_s)  # the thread may be sending a message that the hub does not read
        self._asks.close()

    # In the thread

    def _listen(self) -> None:
        next_beat_s = time.monotonic()
        while not self._closing.is_set():
            wait_s = next_beat_s - time.monotonic()
            if wait_s <= 0:
                self._board.set_processor_ns(self._rank, time.process_time_ns())
                news = {"leaves": self._leaves, "hears": self._hears.heard_bytes}
                self._hears.send("beat", {**self._board.read_own(self._rank), **news})
                next_beat_s = time.monotonic() + BEAT_S
                self._look_for_the_hub()
            elif letter := self._hears.receive(wait_s):
                self._take(letter)
            self._heard_s = max(self._heard_s, self._hears.heard_s)
        self._hears.close()

    def _look_for_the_hub(self) -> None:
        limit_s = _CLOSED_S if self._hears.is_broken else patience_s(self._deadline_s)
        if not self.cut and time.monotonic() - self._heard_s > limit_s:
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
        elif letter.word == "beat":
            self._board.note_awaited_work(self._rank, values["awaited_work"])
        elif letter.word == "status":
            self._board.set_status(values["rank"], Status(values["status"]))
            self._board.bells.ring(self._rank)
        elif letter.word == "last_step":
            self._board.last_step = values["last_step"]
            self._answer(letter, values)
        elif letter.word == "stop":
            self._board.stop = True
        elif letter.word == "announced_end":
            self._board.announce_end(values["generation"], values["word"])
            self._answer(letter, values)
        elif letter.word == "metric":
            self._board.set_metric(values["evaluation"], values["metric"])
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


class HubConnection:
    """A rank's connection to a hub. Only one thread uses it."""

    def __init__(
        self, rank: int, authenticator: Authenticator, hub: PeerAddress, channel: Channel, deadline_s: float
    ) -> None:
        self._rank = rank
        self._deadline_s = deadline_s
        self._letters: deque[Letter] = deque()
        self.heard_s = time.monotonic()
        """When data last arrived, on the monotonic clock."""
        self._connection = LetterConnection(open_stream(self._connect(authenticator, hub, channel)))
        self._poll = select.poll()
        self._poll.register(self._connection.stream.fileno(), select.POLLIN)

    @property
    def is_broken(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.stream.is_broken

    @property
    def heard_bytes(self) -> int:
        """Number of bytes that have arrived of the current message."""
        return self._connection.reader.offset

    def send(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        """Send a message. The message is dropped if the hub has ended, which missing heartbeats reveal."""
        connection = self._connection
        connection.post(word, values, blobs)
        until_s = time.monotonic() + self._deadline_s
        while connection.has_unsent and not connection.stream.is_broken:
            self._wait(select.POLLOUT, BEAT_S)
            if connection.flush():
                until_s = time.monotonic() + self._deadline_s
            elif time.monotonic() > until_s:
                raise DeadlineError(self._rank, f"sending {word}", "the driver", self._deadline_s)

    def receive(self, timeout_s: float) -> Letter | None:
        """Return the next message. None if no message is complete within the time, or only a part has arrived."""
        if not self._letters:
            self._read()
            if not self._letters and self._wait(select.POLLIN, timeout_s):
                self._read()
        return self._letters.popleft() if self._letters else None

    def close(self) -> None:
        self._connection.close()

    def _connect(self, authenticator: Authenticator, hub: PeerAddress, channel: Channel) -> sockets.socket:
        """Connect to the hub. Retry, because the hub may not have received the list of members yet."""
        until_s = time.monotonic() + self._deadline_s
        while (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(OSError, FrameError):
                socket = authenticator.open(hub, timeout_s=left_s)
                with contextlib.ExitStack() as stack:
                    stack.callback(socket.close)
                    if authenticator.connect(socket, hub, "hub", channel):
                        stack.pop_all()
                        return socket
            time.sleep(_RETRY_S)
        raise DeadlineError(self._rank, "connecting", f"the driver at {hub}", self._deadline_s)

    def _wait(self, event: int, timeout_s: float) -> bool:
        """Wait until the connection is readable or writable, as given by `event`."""
        stream = self._connection.stream
        if stream.is_broken:
            time.sleep(timeout_s)
            return False
        self._poll.modify(stream.fileno(), event)
        is_ready = bool(self._poll.poll(1000 * timeout_s))
        stream.is_readable = stream.is_writable = True
        return is_ready

    def _read(self) -> None:
        if not self._connection.stream.is_broken:
            received, letters = self._connection.receive()
            self._letters += letters
            if received:
                self.heard_s = time.monotonic()
