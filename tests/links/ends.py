"""Two or more ends of a link in one process."""

import os
import time

from processes import PATIENCE_S

from paceline.links.memory.bells import Bells
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import SharedMemory
from paceline.links.port import MixedWays, Port
from paceline.links.tcp import TcpEndpoint, TcpWays


def shared(name, nbytes):
    """Memory with a closed file. Its mappings stay in reference cycles until Python collects these."""
    memory = SharedMemory.create(name, nbytes)
    memory.close_fd()
    return memory


class Waiter:
    """Polls every operation of its process until one is done, like a rank's context but without sleeping."""

    in_background = False

    def __init__(self):
        self.running = []

    def start(self, operation):
        self.running.append(operation)
        return operation

    def wait(self, operation):
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            for other in self.running:
                other.poll()
            if operation.poll():
                return
        raise AssertionError(f"{operation} never ends")


class Ends:
    """The ports of several ranks over one memory, and the records of each."""

    def __init__(self, ranks=2):
        self.memory = shared("test-rings", RingWays.nbytes(ranks))
        self.bells = Bells(shared("test-bells", Bells.nbytes(ranks)), 0, ranks)
        self.waiter = Waiter()
        self.sent, self.received = [], []
        self.open(ranks)
        self.ports = [None] * ranks
        for rank in range(ranks):
            self.reopen(rank)

    def reopen(self, rank):
        """Open the port of a rank, which has no messages."""
        ranks = len(self.ports)
        ways = self.ways(rank, ranks)
        self.ports[rank] = Port(rank, ranks, ways, self.bells, self.sent.append, self.received.append)

    def open(self, ranks):
        """Additional arguments of the ways."""

    def close(self):
        """Close everything."""

    def ways(self, rank, ranks):
        return RingWays(rank, ranks, self.memory, self.bells)

    def send(self, source, to, tensor, tag=0, numbers=()):
        """Begin to send. The operation makes progress whenever another operation of this object is awaited."""
        operation = self.ports[source].send(self.waiter, to, tensor, tag, numbers)
        operation.poll()
        return self.waiter.start(operation)

    def post(self, rank, source, into=None, combine="copy", tag=0):
        """Post a receive, which is the first part of awaiting it."""
        operation = self.ports[rank].recv(self.waiter, source, into, combine, tag)
        operation.begin()
        return operation

    def recv(self, rank, source, into=None, combine="copy", tag=0):
        return self.finish(self.post(rank, source, into, combine, tag))

    def finish(self, operation):
        if not operation.done:
            self.waiter.wait(operation)
        return operation.take()

    def settle(self):
        """Wait until all sent data has arrived, as far as it does without a receive."""

    def poll_until(self, is_so, what):
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, f"it never came to be that {what}"
            for operation in self.waiter.running:
                operation.poll()


class TcpEnds(Ends):
    """The ends over the loopback interface."""

    encrypt = False

    def open(self, ranks):
        run_id, token = os.urandom(16), os.urandom(16)
        self.endpoints = [
            TcpEndpoint(rank, run_id=run_id, encrypt=self.encrypt, token=token) for rank in range(ranks)
        ]
        for endpoint in self.endpoints:
            endpoint.meet([other.address for other in self.endpoints])

    def close(self):
        for endpoint in self.endpoints:
            endpoint.close()

    def ways(self, rank, ranks):
        return TcpWays(self.endpoints[rank])

    def settle(self):
        """Wait until nothing has arrived for a while.

        The first data may take longer, because a busy machine does not connect immediately.
        """
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            for endpoint in self.endpoints:
                if endpoint.drain():
                    until_s = time.monotonic() + 0.2
            for operation in self.waiter.running:
                operation.poll()
            time.sleep(0.001)


class EncryptedEnds(TcpEnds):
    encrypt = True


class MixedEnds(TcpEnds):
    """The last rank is on a separate host. The others share a host."""

    def ways(self, rank, ranks):
        near, far = Ends.ways(self, rank, ranks), super().ways(rank, ranks)
        return MixedWays(near, far, [int(r == ranks - 1) for r in range(ranks)], rank)


LINKS = {"rings": Ends, "tcp": TcpEnds, "encrypted-tcp": EncryptedEnds, "mixed": MixedEnds}
