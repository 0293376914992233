"""Who is let in at the sockets of a run: its own ranks and its driver, and nobody else.

Each process of a run makes a key pair of its own; only public keys travel, over the launch channel. With encryption a
socket takes connections by CURVE, from keys that it has been told. Without, it takes them by PLAIN, from whoever knows
the run's token. Either way the name of the sender comes from here, never from what a message says about itself.
"""

from __future__ import annotations

import hmac
import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import zmq
from zmq.utils import z85

from paceline.errors import ConfigurationError
from paceline.links.callers import Callers
from paceline.links.intake import Intake

__all__ = ["Gate", "KeyPair"]

_log = logging.getLogger("paceline")

_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks, by its ZAP protocol (RFC 27)
_VERSION = b"1.0"
_PATIENCE_MS = 300
_CLOSE = "inproc://paceline-gate-close"


class KeyPair(NamedTuple):
    """As text of 40 characters each, the form that ZeroMQ takes."""

    public: bytes
    secret: bytes


class Gate:
    """The doorkeeper of one process: it serves all sockets of a ZeroMQ context.

    Nobody is answered before `admit` has said who belongs to the run: who comes early waits.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], *, encrypt: bool, token: bytes) -> None:
        if not encrypt and not token:
            remedy = "make one for each run: secrets.token_bytes(16)"
            raise ConfigurationError("token", "must not be empty without encryption", token, remedy)
        self.keys = KeyPair(*zmq.curve_keypair()) if encrypt else KeyPair(b"", b"")
        self._encrypt = encrypt
        self._token = token
        self._context = context
        self._names: dict[bytes, bytes] = {}
        self._known = threading.Event()
        self._refused: set[str] = set()
        self._callers: list[Callers] = []
        self._closing = context.socket(zmq.PAIR)
        self._closing.bind(_CLOSE)
        requests = context.socket(zmq.REP)
        requests.bind(_ADDRESS)
        self._thread = threading.Thread(target=self._serve, args=(requests,), name="gate", daemon=True)
        self._thread.start()

    def admit(self, names: Mapping[str, bytes]) -> None:
        """Let in those of these names; each with its public key, which counts where there is encryption."""
        for name, key in names.items():
            self._names[key if self._encrypt else name.encode()] = name.encode()
        self._known.set()

    def guard(self, socket: zmq.Socket[bytes]) -> Intake:
        """Take only the run's own processes at this socket. To be called before it is bound, and before `admit`.

        Returns what is known of the socket's connections. Each is known before anything that it brings is handed over.
        """
        assert not self._known.is_set()
        if self._encrypt:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self.keys
        else:
            socket.plain_server = True
        socket.zap_domain = b"paceline"
        socket.zap_enforce_domain = True  # or else all would be let in if this gate were gone
        intake = Intake(encrypt=self._encrypt)
        self._callers.append(Callers(self._context, socket, intake))
        return intake

    def introduce(self, socket: zmq.Socket[bytes], name: str, server_key: bytes) -> None:
        """Give a socket, before it connects, what it needs to be let in under a name."""
        if self._encrypt:
            socket.curve_publickey, socket.curve_secretkey = self.keys
            socket.curve_serverkey = server_key
        else:
            socket.plain_username = name.encode()
            socket.plain_password = self._token.hex().encode()

    def close(self) -> None:
        self._known.set()
        self._closing.send(b"")
        self._thread.join()
        self._closing.close(linger=0)

    def _serve(self, requests: zmq.Socket[bytes]) -> None:
        closing = self._context.socket(zmq.PAIR)
        closing.connect(_CLOSE)
        poller = zmq.Poller()
        poller.register(requests, zmq.POLLIN)
        poller.register(closing, zmq.POLLIN)
        self._known.wait()
        for callers in self._callers:
            poller.register(callers.socket, zmq.POLLIN)
        self._answer_until(closing, requests, poller)
        for socket in (closing, requests, *(callers.socket for callers in self._callers)):
            socket.close(linger=0)

    def _answer_until(
        self, closing: zmq.Socket[bytes], requests: zmq.Socket[bytes], poller: zmq.Poller
    ) -> None:
        told_s = math.inf
        while closing not in (news := dict(poller.poll(_PATIENCE_MS if told_s < math.inf else None))):
            # First who has come, then who may come in: a connection is known before it brings anything.
            if sum(callers.hear() for callers in self._callers) and told_s == math.inf:
                # Not at once: when a run ends, its ranks may leave before they are let in; this gate closes soon then.
                told_s = time.monotonic() + _PATIENCE_MS * 1e-3
            if requests in news:
                self._answer(requests)
            if time.monotonic() >= told_s:
                self._refuse("somebody", "did not say who it is as this run's ranks do")
                told_s = math.inf

    def _answer(self, requests: zmq.Socket[bytes]) -> None:
        _, request, _, address, _, mechanism, *credentials = requests.recv_multipart()
        name = self._name(mechanism, credentials)
        if name is None:
            self._refuse(address.decode(errors="replace"), "does not belong to this run")
        code, text = (b"400", b"not of this run") if name is None else (b"200", b"")
        requests.send_multipart([_VERSION, request, code, text, name or b"", b""])

    def _name(self, mechanism: bytes, credentials: list[bytes]) -> bytes | None:
        if self._encrypt and mechanism == b"CURVE" and len(credentials) == 1:
            return self._names.get(z85.encode(credentials[0]))
        if not self._encrypt and mechanism == b"PLAIN" and len(credentials) == 2:
            known = self._names.get(credentials[0])
            return known if hmac.compare_digest(credentials[1], self._token.hex().encode()) else None
        return None

    def _refuse(self, who: str, why: str) -> None:
        if who not in self._refused:
            self._refused.add(who)
            _log.warning("refused a connection from %s, which %s", who, why)
