"""Handshakes in progress: closing them ends, in any state of their threads."""

import socket
import threading

from processes import PATIENCE_S

from paceline.links.tcp import attempts as module
from paceline.links.tcp.attempts import Attempt, Attempts

CLOSING_S = 30.0


def test_closing_does_not_wait_longer_than_its_limit_for_a_thread_that_is_stuck(monkeypatch):
    monkeypatch.setattr(module, "_JOIN_S", 0.05)
    released = threading.Event()
    own, other = socket.socketpair()
    attempt = Attempt(own, "127.0.0.1")
    attempt.thread = threading.Thread(target=released.wait, daemon=True)
    attempt.thread.start()
    attempts = Attempts(2)
    attempts.add(attempt)
    closing = threading.Thread(target=attempts.close, daemon=True)
    closing.start()
    closing.join(CLOSING_S)
    try:
        assert not closing.is_alive()
        assert attempt.is_ended
        assert other.recv(1) == b"", "the connection of the attempt is shut down"
    finally:
        released.set()
        for thread in (attempt.thread, closing):
            thread.join(PATIENCE_S)
        own.close()
        other.close()


def test_an_attempt_that_is_added_after_the_end_is_ended():
    own, other = socket.socketpair()
    attempts, attempt = Attempts(2), Attempt(own, "127.0.0.1")
    attempts.close()
    attempts.add(attempt)
    assert attempt.is_ended
    assert other.recv(1) == b""
    own.close()
    other.close()
