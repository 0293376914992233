"""Groups of ranks, identified by their members. All ranks of the run agree on the number of each group.

A message tag combines the group number, a collective bit and the strategy's tag. So messages and collectives of one
group never match those in another group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.errors import ConfigurationError

_TAG_BITS = 32
_COLLECTIVE = 1 << _TAG_BITS
_MAX_GROUPS = 2**30


class Group:
    """One group, seen from one of its ranks."""

    __slots__ = ("_begun", "base", "hosts", "members", "number", "place", "positions", "rank")

    def __init__(
        self, number: int, members: Sequence[int], rank: int, hosts: Sequence[int], *, place: int
    ) -> None:
        self.number = number
        self.place = place
        """The group's number in the first generation. Windows are looked up by it, so later generations find them."""
        self.members = members
        self.rank = members.index(rank)
        """Position of this rank in the group."""
        self.hosts = hosts
        self.base = number << _TAG_BITS + 1
        """Offset added to every tag of this group."""
        self.positions = {member: position for position, member in enumerate(members)} if number else None
        """Position of each rank. None if the position equals the rank."""
        self._begun = 0

    @property
    def size(self) -> int:
        return len(self.members)

    def next_collective(self) -> int:
        """Return a new tag for each collective, the same on every rank. Several collectives may run at the same
        time."""
        self._begun += 1
        return _COLLECTIVE | self._begun % _COLLECTIVE


class GroupNumbers:
    """Number of each group of ranks, assigned by one process for the whole run. The group of all ranks is 0."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def number_of(self, members: tuple[int, ...]) -> int:
        """Return the number of a group. It is the same for every rank."""
        return self._numbers.setdefault(members, len(self._numbers) + 1)


class Groups:
    """The groups of one rank in one generation of the run.

    `number_of` returns the number of a group, the same for every rank. Each generation uses different numbers, so that
    messages of different generations never match.
    """

    __slots__ = ("_found", "_generation", "_hosts", "_number_of", "_rank", "everybody")

    def __init__(
        self,
        rank: int,
        hosts: Sequence[int],
        number_of: Callable[[tuple[int, ...]], int],
        *,
        generation: int = 0,
        members: Sequence[int] | None = None,
    ) -> None:
        """`members` are the ranks of the generation, in order. None for all ranks."""
        self._generation = generation
        self._rank = rank
        self._hosts = hosts
        self._number_of = number_of
        # Later generations count down from the last number, so no lookup is needed.
        number = _MAX_GROUPS - generation if generation else 0
        everybody = range(len(hosts)) if members is None else tuple(members)
        hosts_of_members = hosts if members is None else [hosts[member] for member in members]
        self.everybody = Group(number, everybody, rank, hosts_of_members, place=0)
        self._found: dict[Sequence[int], Group] = {self.everybody.members: self.everybody}

    def find(self, members: Sequence[int]) -> Group:
        """Return the group of these ranks, in this order."""
        key = members if isinstance(members, range) else tuple(members)
        group = self._found.get(key)
        if group is None:
            group = self._found[key] = self._found.get(tuple(key)) or self._make(tuple(key))
            self._found[group.members] = group
        return group

    def _make(self, members: tuple[int, ...]) -> Group:
        if members == tuple(self.everybody.members):
            return self.everybody
        self._check(members)
        place = self._number_of(members)
        # Negative: no rank has such a number.
        number = self._number_of((-self._generation, *members)) if self._generation else place
        assert 0 < number < _MAX_GROUPS, "a run has fewer groups than this"
        hosts = tuple(self._hosts[member] for member in members)
        return Group(number, members, self._rank, hosts, place=place)

    def _check(self, members: tuple[int, ...]) -> None:
        ranks = len(self._hosts)
        if len(set(members)) != len(members):
            raise ConfigurationError("group", "must name each rank once", members)
        outside = [member for member in members if member not in self.everybody.members]
        if outside:
            raise ConfigurationError("group", f"must name ranks 0 to {ranks - 1}", outside[0])
        if self._rank not in members:
            raise ConfigurationError("group", f"must contain the rank that calls, {self._rank}", members)


_GENERATIONS, _PROGRAMS = 2**13, 2**16
"""Generations of members, and programs in one of them, before their numbers repeat."""


def net_number(generation: int, program: int) -> int:
    """Return the number of the nets of a program: `program` counts the programs of a generation of members."""
    return (generation % _GENERATIONS) * _PROGRAMS + program % _PROGRAMS
