"""Two or more ends of the shared-memory link in one process."""

from paceline.links.bells import Bells
from paceline.links.memory import SharedMemory
from paceline.links.port import Port
from paceline.links.shared_memory import RingWays


class Waiter:
    """Polls every operation of its process until one is done: what a rank's context does, without the sleep."""

    in_background = False

    def __init__(self):
        self.running = []

    def start(self, operation):
        self.running.append(operation)
        return operation

    def wait(self, operation):
        for _ in range(10_000):
            for other in self.running:
                other.poll()
            if operation.poll():
                return
        raise AssertionError(f"{operation} never ends")


class Ends:
    """The ports of several ranks over one memory, and what each of them noted."""

    def __init__(self, ranks=2):
        self.memory = SharedMemory.create("test-rings", RingWays.nbytes(ranks))
        self.bells = Bells(SharedMemory.create("test-bells", Bells.nbytes(ranks)), 0, ranks)
        self.waiter = Waiter()
        self.sent, self.received = [], []
        self.ports = [
            Port(rank, ranks, self.ways(rank, ranks), self.bells, self.sent.append, self.received.append)
            for rank in range(ranks)
        ]

    def ways(self, rank, ranks):
        return RingWays(rank, ranks, self.memory, self.bells)

    def send(self, source, to, tensor, tag=0, version=0):
        """Begin to send; the operation goes on whenever another one of this object is awaited."""
        operation = self.ports[source].send(self.waiter, to, tensor, tag, version)
        operation.poll()
        return self.waiter.start(operation)

    def post(self, rank, source, into=None, combine="copy", tag=0):
        return self.ports[rank].recv(self.waiter, source, into, combine, tag)

    def recv(self, rank, source, into=None, combine="copy", tag=0):
        return self.finish(self.post(rank, source, into, combine, tag))

    def finish(self, operation):
        if not operation.done:
            self.waiter.wait(operation)
        return operation.take()
