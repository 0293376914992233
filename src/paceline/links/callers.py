"""Those who connect to a socket and never get as far as to say who they are: strangers, scanners, garbage.

ZeroMQ drops them by itself and asks nobody. Here one can hear of it.
"""

from __future__ import annotations

import itertools
import struct

import zmq

from paceline.links.intake import Intake

__all__ = ["Callers"]

_EVENT = struct.Struct("<HI")  # what happened, and to which connection: its file
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH  # for their credentials: the gate that refused them has noted it
_EVENTS = _FAILED | _REFUSED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_numbers = itertools.count()


class Callers:
    """Counts the connections to one socket, which is not bound yet, by what became of them."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], watched: zmq.Socket[bytes], intake: Intake
    ) -> None:
        """`intake` is told which connections there are."""
        address = f"inproc://paceline-callers-{next(_numbers)}"
        watched.monitor(address, _EVENTS)
        self.socket = context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.connect(address)
        self._intake = intake
        # ZeroMQ does not say which connection an event is of. Those at the door, those let in, those turned away:
        # their numbers tell enough.
        self._waiting = self._inside = self._leaving = 0

    def hear(self) -> int:
        """Take the news; how many connections have ended that were never let in, nor refused by credentials."""
        strangers = 0
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            message, _ = self.socket.recv_multipart()
            event, fd = _EVENT.unpack(message)
            if event == zmq.EVENT_ACCEPTED:
                self._intake.opened(fd)
            elif event == zmq.EVENT_DISCONNECTED:
                self._intake.closed(fd)
            strangers += self._count(event)
        return strangers

    def _count(self, event: int) -> bool:
        if event == zmq.EVENT_ACCEPTED:
            self._waiting += 1
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._waiting -= 1
            self._inside += 1
        elif event & (_FAILED | _REFUSED):
            self._waiting -= 1
            self._leaving += 1
            return event != _REFUSED
        elif self._leaving:  # disconnected, as was to be expected
            self._leaving -= 1
        elif self._waiting:
            self._waiting -= 1
            return True
        else:
            self._inside -= 1
        return False
