"""Runs the shared-memory accesses of several processes in one process, in every relevant order.

A process of a scenario is a function. It runs in a thread. Only one thread runs at a time, and control changes only
at accesses to the memory: each read, each write and each fence is a point at which the order may change. Orders are
found by depth-first search over the choices at each point, with a bound on the number of preemptions: how often a
process is stopped although it could continue ( Musuvathi and Qadeer, "Iterative Context Bounding", 2007: most races
need one or two).

If several orders reach the same state, only the first is continued, unless another one had fewer preemptions.

Processors delay writes: with `delayed` a write becomes visible to other processes only at the next fence, or when
the writer waits. Real processors may also do anything between these two extremes.
"""

import queue
import threading
from dataclasses import dataclass, field
from typing import ClassVar

from paceline.links.memory.shared import SharedMemory

__all__ = ["DeadlockError", "ExploredMemory", "Order", "every_order", "random_orders"]

_LIMIT_S = 60.0


class DeadlockError(AssertionError):
    """Every process that has not ended waits."""


class _Abandoned(BaseException):
    """Unwinds the threads of an order that has failed."""


class _Known(BaseException):
    """Raised if another order has already continued from this state."""


@dataclass
class _Choice:
    """A point of an order: the number of choices, the one that was taken, and the cost of each."""

    options: int
    taken: int
    is_free: bool


@dataclass
class _Process:
    name: str
    function: object
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: bool = False
    waits_for: object = None
    pending: list = field(default_factory=list)  # writes that are not visible to others yet
    history: int = 0  # hash of its accesses and results, which determine its next access


class Order:
    """One run of a scenario's processes. It follows a list of choices and then makes its own."""

    def __init__(self, choices=(), choose=None, *, delayed=False, known=None):
        self._given = list(choices)
        self._known = known
        self._spent = 0
        self._memories = []
        self._choose = choose or (lambda options, is_free: 0)
        self._delayed = delayed
        self._processes = []
        self._current = None
        self._error = None
        self._finished = threading.Event()
        self.choices = []
        self.log = []

    def memory(self, nbytes):
        """Memory in which every access is a point of this order."""
        memory = ExploredMemory.blank(nbytes)
        memory.order = self
        self._memories.append(memory)
        return memory

    def run(self, **functions):
        """Run the processes to their ends.

        Raise the error of a process, or an error that names processes that wait forever.
        """
        self._processes = [_Process(name, function) for name, function in functions.items()]
        ends = [_threads.run(self._live, process) for process in self._processes]
        self._hand_over()
        assert self._finished.wait(_LIMIT_S), f"the order itself does not end: {self.log[-20:]}"
        for process, end in zip(self._processes, ends, strict=True):
            process.turn.release()
            end.acquire()
        for memory in self._memories:
            memory.give_back()
        if self._error is not None:
            raise self._error

    def _live(self, process):
        process.turn.acquire()
        try:
            if not self._finished.is_set():
                process.function()
                self.point(("end",))
                self._show(process)
                process.ended = True
                self._hand_over()
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
            self._finished.set()

    # The points

    def point(self, what):
        """Called before the running process makes an access that depends on or affects other processes."""
        if self._current is None:  # the scenario is being set up or checked
            return
        self.log.append((self._current.name, what))
        self._note(what)
        self._hand_over(self._current)

    def _note(self, what):
        self._current.history = hash((self._current.history, what))

    def wait(self, is_over):
        """The running process waits until another process makes this condition true."""
        current = self._current
        self._show(current)
        current.waits_for = is_over
        self._hand_over()
        current.turn.acquire()
        self._go_on(current)

    def _go_on(self, process):
        if self._finished.is_set():
            raise _Abandoned
        process.waits_for = None

    def _hand_over(self, current=None):
        """Continue one of the processes that can run; by default the running one."""
        others = [p for p in self._processes if p is not current and self._can_go_on(p)]
        options = ([current] if current else []) + others
        if not options:
            self._end()
            return
        chosen = options[self._take(len(options), is_free=current is None)]
        if chosen is current:
            return
        self._current = chosen
        chosen.turn.release()
        if current is not None:
            current.turn.acquire()
            self._go_on(current)

    def _can_go_on(self, process):
        return not process.ended and (process.waits_for is None or process.waits_for())

    def _end(self):
        waiting = [p.name for p in self._processes if not p.ended]
        if waiting:
            self._error = DeadlockError(f"{', '.join(waiting)} for ever; the last points: {self.log[-30:]}")
        self._current = None
        self._finished.set()

    def _take(self, options, *, is_free):
        if options == 1:
            return 0
        at = len(self.choices)
        if at < len(self._given):
            taken = self._given[at]
        else:
            self._look_for_known()
            taken = self._choose(options, is_free)
        self.choices.append(_Choice(options, taken, is_free))
        self._spent += bool(taken) and not is_free
        return taken

    def _look_for_known(self):
        if self._known is None:
            return
        # Pending writes are part of the history.
        processes = [(p.history, p.ended, p.waits_for is None, len(p.pending)) for p in self._processes]
        contents = [bytes(memory.view) for memory in self._memories]
        state = hash((self._current.name if self._current else "", *processes, *contents))
        if self._known.get(state, self._spent + 1) <= self._spent:
            raise _Known
        self._known[state] = self._spent

    # Memory

    def read(self, words, at):
        self.point(("read", at))
        value = words[at]
        if self._current is not None:
            mine = [v for view, index, v in self._current.pending if view is words and index == at]
            value = mine[-1] if mine else value
            self._note(value)
        return value

    def write(self, words, at, value):
        if self._current is not None and self._delayed:
            self._note(("write", at, value))  # not visible to others yet, so not a point
            self._current.pending.append((words, at, value))
        else:
            self.point(("write", at, value))
            words[at] = value

    def fence(self):
        if self._current is not None and self._current.pending:
            self.point(("fence",))
            self._show(self._current)

    @staticmethod
    def _show(process):
        for words, at, value in process.pending:
            words[at] = value
        process.pending.clear()


class _Threads:
    """Threads that are reused, because starting one takes longer than most orders."""

    def __init__(self):
        self._idle = []

    def run(self, function, argument):
        """Call a function in another thread. Return the semaphore that is released at its end."""
        work, end = self._idle.pop() if self._idle else self._start()
        work.put((function, argument))
        return end

    def _start(self):
        work, end = queue.SimpleQueue(), threading.Semaphore(0)
        threading.Thread(target=self._live, args=(work, end), daemon=True).start()
        return work, end

    def _live(self, work, end):
        while True:
            function, argument = work.get()
            function(argument)
            self._idle.append((work, end))
            end.release()


_threads = _Threads()


class _Words:
    """Words in which each access is a point."""

    def __init__(self, order, words):
        self._order, self._words = order, words

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self._words)))]
        return self._order.read(self._words, at)

    def __setitem__(self, at, value):
        self._order.write(self._words, at, value)


class _Fence:
    def __init__(self, order):
        self._order = order

    def __enter__(self):
        self._order.fence()

    def __exit__(self, *_):
        pass


class ExploredMemory(SharedMemory):
    """Memory of one process that behaves like memory shared by several."""

    order: Order
    _spare: ClassVar[dict] = {}  # reused by size, because mapping memory takes longer than clearing it

    @classmethod
    def blank(cls, nbytes):
        spare = cls._spare.setdefault(nbytes, [])
        if spare:
            memory = spare.pop()
            memory.view[:] = bytes(nbytes)
        else:
            memory = cls.create("explored", nbytes)
            memory.close_fd()
        memory.sleepers = {}
        return memory

    def give_back(self):
        self._spare[self.nbytes].append(self)

    @property
    def fence(self):
        return _Fence(self.order)

    def words(self, offset, count):
        return _Words(self.order, super().words(offset, count))

    def move(self, to, source, nbytes):
        """Copy in two halves, because a copy is not atomic."""
        half = nbytes // 2
        self.order.point(("move", nbytes))
        SharedMemory.move(to, source, half)
        self.order.point(("move", nbytes))
        SharedMemory.move(to + half, source + half, nbytes - half)

    def wait(self, offset, value, timeout_s):
        """Ignore the timeout: a process that is never woken sleeps forever, and the explorer reports it."""
        words = SharedMemory.words(self, offset, 1)
        self.order.fence()  # a system call is a fence
        if words[0] == value:
            woken = self.sleepers.setdefault(offset, [])
            ticket = [False]
            woken.append(ticket)
            self.order.wait(lambda: ticket[0])

    def wake(self, offset):
        self.order.fence()
        for ticket in self.sleepers.pop(offset, []):
            ticket[0] = True


def every_order(scenario, *, preemptions, delayed=False):
    """Run a scenario in all orders with up to this number of preemptions. Return the number of orders.

    `scenario(order)` creates memory of the order, runs its processes by `order.run`, and checks the result.
    """
    count, pending, known = 0, [()], {}  # known states, with the preemptions that led there
    while pending:
        given = pending.pop()
        order = Order(given, delayed=delayed, known=known)
        try:
            scenario(order)
        except _Known:
            pass
        except BaseException as error:
            error.add_note(f"in the order {[choice.taken for choice in order.choices]}, delayed={delayed}")
            raise
        count += 1
        pending += _branches(order.choices, len(given), preemptions)
    return count


def _branches(choices, begun, preemptions):
    """Return the orders that differ from this one after the given choices: one for each other choice at each point."""
    taken = [choice.taken for choice in choices]
    spent = sum(not choice.is_free and choice.taken != 0 for choice in choices[:begun])
    for at, choice in enumerate(choices[begun:], begun):
        # After `begun` the first option was always taken, which is not a preemption.
        if choice.is_free or spent < preemptions:
            for option in range(1, choice.options):
                yield (*taken[:at], option)


def random_orders(scenario, chance, count, *, delayed=False):
    """Run a scenario in this number of random orders, with any number of preemptions."""
    for _ in range(count):
        share = chance.choice([0.03, 0.1, 0.3, 0.6])

        def choose(options, is_free, share=share):
            return chance.randrange(options) if is_free or chance.random() < share else 0

        order = Order(choose=choose, delayed=delayed)
        try:
            scenario(order)
        except BaseException as error:
            error.add_note(f"in the order {[choice.taken for choice in order.choices]}, delayed={delayed}")
            raise
