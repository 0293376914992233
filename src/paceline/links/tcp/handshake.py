"""Mutual authentication of two processes of a run, before any data.

    connecting side                       accepting side
    HELLO  run, generation, channel, name, nonce  →
                                      ←   CHALLENGE  name, nonce, HMAC
    PROOF  HMAC                       →
                                      ←   ANSWER  open or busy

With encryption this happens inside TLS 1.3. Both sides present a certificate, and each checks that the other's is
exactly the one that it was given for that name. In TLS 1.3 a client detects only at its first read that its certificate
was rejected; the challenge is that read. Without encryption the HMAC proves that the sender has the run's token. Nonces
prevent replays. The two sides hash different labels, so that a message cannot be reflected.

The accepting side does not have the certificate of a newcomer yet, so a newcomer connects without a certificate. It
must have the token, and the HMAC covers the fingerprints of both certificates. The newcomer's certificate follows
its proof.

The functions block. The caller sets a timeout on the socket.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket as sockets
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError, FrameError
from paceline.links.tcp.address import PeerAddress

if TYPE_CHECKING:
    from paceline.links.tcp.identity import Identity

RUN_ID_BYTES = 16
_NONCE_BYTES = _MAC_BYTES = 32
_NAME_BYTES = 16
_HELLO = struct.Struct(f"<4s{RUN_ID_BYTES}sIB{_NAME_BYTES}s{_NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<4s{_NAME_BYTES}s{_NONCE_BYTES}s{_MAC_BYTES}s")
_PROOF = struct.Struct(f"<{_MAC_BYTES}sH")  # the last field is the length of a newcomer's certificate, or 0
_MAGIC_HELLO, _MAGIC_CHALLENGE = b"PLH2", b"PLC1"
_OPEN, _BUSY = b"\1", b"\2"
_MOST_CERTIFICATE_BYTES = 4096


class Channel(IntEnum):
    """The purpose of a connection."""

    DATA = 0
    """Tensors between two ranks."""
    ASK = 1
    """Requests of a rank's program to the hub."""
    HEAR = 2
    """Notifications of the hub to a rank, and the rank's heartbeats."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The authenticated other side of a connection."""

    name: str
    channel: Channel
    certificate: bytes = b""
    is_newcomer: bool = False
    generation: int = 0
    """Generation of members that the connection belongs to."""


class Authenticator:
    """One process's credentials, and the certificates that it accepts."""

    def __init__(self, name: str, *, run_id: bytes, token: bytes, encrypt: bool) -> None:
        if not encrypt and not token:
            remedy = "make one for each run: secrets.token_bytes(16)"
            raise ConfigurationError("token", "must not be empty without encryption", token, remedy)
        assert len(run_id) == RUN_ID_BYTES
        self.name = name
        self.accepts_newcomers = False
        self._run_id = run_id
        self._token = token
        self._identity = _new_identity() if encrypt else None
        self._certificates: dict[str, bytes] = {}
        if self._identity is not None:
            self._as_server = self._identity.context(server=True)
            self._as_client = self._identity.context(server=False)

    @property
    def certificate(self) -> bytes:
        return self._identity.certificate if self._identity is not None else b""

    def admit(self, certificates: Mapping[str, bytes]) -> None:
        """Accept processes with these names and certificates. More may be added later."""
        self._certificates.update(certificates)
        if self._identity is not None and certificates:
            trusted = b"".join(certificates.values())
            self._as_server.load_verify_locations(cadata=trusted)
            self._as_client.load_verify_locations(cadata=trusted)

    def dismiss(self, name: str) -> None:
        """Accept this process no longer."""
        self._certificates.pop(name, None)

    # Accepting

    def wrap_accepted(self, socket: sockets.socket) -> sockets.socket:
        """Return the socket to authenticate, wrapped in TLS if encrypted, without sending or receiving."""
        if self._identity is None:
            return socket
        newcomers = self.accepts_newcomers and bool(self._token)
        self._as_server.verify_mode = ssl.CERT_OPTIONAL if newcomers else ssl.CERT_REQUIRED
        return self._as_server.wrap_socket(socket, server_side=True, do_handshake_on_connect=False)

    def accept(self, socket: sockets.socket) -> Peer:
        """Authenticate the other side, up to its proof. Raise FrameError or OSError if it fails."""
        if isinstance(socket, ssl.SSLSocket):
            socket.do_handshake()
        hello = _receive(socket, _HELLO.size)
        magic, run_id, generation, channel, name, _ = _HELLO.unpack(hello)
        if magic != _MAGIC_HELLO or channel > max(Channel):
            raise FrameError("sent an invalid hello")
        if run_id != self._run_id:
            raise FrameError("belongs to another run")
        certificate = _peer_certificate(socket)
        own_nonce = secrets.token_bytes(_NONCE_BYTES)
        own_name = self.name.encode().ljust(_NAME_BYTES, b"\0")
        said = hello + own_nonce + own_name + _fingerprint(self.certificate)
        # A newcomer's certificate is not known yet, so only the newcomer's proof covers it, not the challenge.
        socket.sendall(
            _CHALLENGE.pack(_MAGIC_CHALLENGE, own_name, own_nonce, self._mac(b"accept", said, certificate))
        )
        proof, certificate_bytes = _PROOF.unpack(_receive(socket, _PROOF.size))
        peer = Peer(_text(name), Channel(channel), certificate, generation=generation)
        if certificate_bytes and self.accepts_newcomers and not certificate:
            if certificate_bytes > _MOST_CERTIFICATE_BYTES:
                raise FrameError("sent a certificate that is too long")
            certificate = _receive(socket, certificate_bytes)
            peer = replace(peer, certificate=certificate, is_newcomer=True)
        if not hmac.compare_digest(proof, self._mac(b"connect", said, peer.certificate)):
            raise FrameError("does not have this run's token")
        if not peer.is_newcomer and self._certificates.get(peer.name) != peer.certificate:
            raise FrameError("is not a process of this run")
        return peer

    @staticmethod
    def answer(socket: sockets.socket, *, is_open: bool) -> None:
        """Notify an authenticated peer whether this connection will be used."""
        socket.sendall(_OPEN if is_open else _BUSY)

    # Connecting

    def open(self, address: PeerAddress, *, timeout_s: float, is_newcomer: bool = False) -> sockets.socket:
        """Return a socket that is connected to an address, with no data sent yet."""
        socket = sockets.create_connection((address.host, address.port), timeout=timeout_s)
        if self._identity is None:
            return socket
        context = self._as_client
        if is_newcomer:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.load_verify_locations(cadata=address.certificate)
        try:
            return context.wrap_socket(socket, do_handshake_on_connect=False)
        except BaseException:
            socket.close()
            raise

    def connect(
        self,
        socket: sockets.socket,
        address: PeerAddress,
        name: str,
        channel: Channel,
        *,
        is_newcomer: bool = False,
        generation: int = 0,
    ) -> bool:
        """Authenticate both sides of an open socket. Return whether the other side will use it.

        `name` is the process at that address. `is_newcomer` if it does not have this process's certificate yet. Raise
        FrameError or OSError on failure.
        """
        if isinstance(socket, ssl.SSLSocket):
            socket.do_handshake()
            if socket.getpeercert(binary_form=True) != address.certificate:
                raise FrameError(f"{address} has the wrong certificate")
        hello = self._hello(channel, generation)
        self._prove(socket, name, hello, address.certificate, is_newcomer=is_newcomer)
        return _receive(socket, len(_OPEN)) == _OPEN

    def _hello(self, channel: Channel, generation: int) -> bytes:
        own_name, nonce = self.name.encode().ljust(_NAME_BYTES, b"\0"), secrets.token_bytes(_NONCE_BYTES)
        return _HELLO.pack(_MAGIC_HELLO, self._run_id, generation, channel, own_name, nonce)

    def _prove(
        self,
        socket: sockets.socket,
        name: str,
        hello: bytes,
        their_certificate: bytes,
        *,
        is_newcomer: bool,
    ) -> None:
        socket.sendall(hello)
        magic, their_name, nonce, mac = _CHALLENGE.unpack(_receive(socket, _CHALLENGE.size))
        if magic != _MAGIC_CHALLENGE or _text(their_name) != name:
            raise FrameError(f"the process that answered is not {name}")
        said = hello + nonce + their_name + _fingerprint(their_certificate)
        expected = self._mac(b"accept", said, b"" if is_newcomer else self.certificate)
        if not hmac.compare_digest(mac, expected):
            raise FrameError("the process that answered does not have this run's token")
        proof = self._mac(b"connect", said, self.certificate)
        enclosed = self.certificate if is_newcomer else b""
        socket.sendall(_PROOF.pack(proof, len(enclosed)) + enclosed)

    def _mac(self, label: bytes, said: bytes, certificate: bytes) -> bytes:
        """Return the HMAC of one side, over all data sent by both sides and both certificates."""
        return hmac.digest(self._token, label + said + _fingerprint(certificate), "sha256")


def _new_identity() -> Identity:
    from paceline.links.tcp.identity import Identity

    return Identity()


def _fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _peer_certificate(socket: sockets.socket) -> bytes:
    if isinstance(socket, ssl.SSLSocket):
        return socket.getpeercert(binary_form=True) or b""
    return b""


def _receive(socket: sockets.socket, nbytes: int) -> bytes:
    """Receive exactly `nbytes` bytes."""
    data = b""
    while len(data) < nbytes:
        more = socket.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("closed the connection before it identified itself")
        data += more
    return data


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="replace")
