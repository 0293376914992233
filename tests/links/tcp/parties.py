"""Two processes' credentials, and connections between them."""

import contextlib
import socket
import threading

from processes import PATIENCE_S

from paceline.links.tcp.address import PeerAddress
from paceline.links.tcp.handshake import Authenticator, Channel

RUN, TOKEN = bytes(range(16)), b"t" * 16


def authenticator(name, *, encrypt, run_id=RUN, token=TOKEN):
    return Authenticator(
        name, run_id=run_id, token=b"" if encrypt and token is TOKEN else token, encrypt=encrypt
    )


def connect(caller, address, name, channel=Channel.DATA, **changes):
    """A socket to the process of this name; None if it does not want the connection."""
    made = caller.open(address, timeout_s=PATIENCE_S, **changes)
    try:
        is_open = caller.connect(made, address, name, channel, **changes)
    except BaseException:
        made.close()
        raise
    if not is_open:
        made.close()
    return made if is_open else None


class House:
    """A process that accepts connections in a thread, one after the other, and records the result of each."""

    def __init__(self, encrypt, name="0", **changes):
        self.encrypt = encrypt
        self.own = authenticator(name, encrypt=encrypt, **changes)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = PeerAddress(*self.listener.getsockname()[:2], self.own.certificate)
        self.found = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def admit(self, *others):
        self.own.admit({other.name: other.certificate for other in others})

    def caller(self, name="1", *, is_admitted=True, knows=True, **changes):
        """Another process's credentials."""
        made = authenticator(name, encrypt=self.encrypt, **changes)
        if knows:
            made.admit({self.own.name: self.own.certificate})
        if is_admitted:
            self.admit(made)
        return made

    def call(self, caller, name="0", channel=Channel.DATA, **changes):
        return connect(caller, self.address, name, channel, **changes)

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self.listener.accept()
                connected.settimeout(PATIENCE_S)
                self._accept(connected)

    def _accept(self, connected):
        try:
            secured = self.own.wrap_accepted(connected)
            peer = self.own.accept(secured)
            self.own.answer(secured, is_open=True)
            self.found.append((peer, secured))
        except Exception as error:
            self.found.append((error, None))
            with contextlib.suppress(OSError):
                secured.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(PATIENCE_S)
        for _, connected in self.found:
            if connected is not None:
                connected.close()
