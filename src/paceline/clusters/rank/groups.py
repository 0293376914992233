"""Groups of ranks, told apart by their members: each has a number that all ranks of the run agree on.

A message's tag is made of that number, a mark of collectives, and what the strategy gave as the tag: so messages and
collectives of one group never meet those of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.errors import ConfigurationError

__all__ = ["Group", "GroupNumbers", "Groups"]

_TAG_BITS = 32
_COLLECTIVE = 1 << _TAG_BITS
_MAX_GROUPS = 2**30


class Group:
    """One group, as one of its ranks knows it."""

    __slots__ = ("_begun", "base", "hosts", "members", "number", "place", "positions", "rank")

    def __init__(
        self, number: int, members: Sequence[int], rank: int, hosts: Sequence[int], *, place: int
    ) -> None:
        self.number = number
        self.place = place
        """Its number in the first leg: windows are found by it, so that a later leg finds them again."""
        self.members = members
        self.rank = members.index(rank)
        """Its position in the group."""
        self.hosts = hosts
        self.base = number << _TAG_BITS + 1
        """What is added to a tag of this group."""
        self.positions = {member: position for position, member in enumerate(members)} if number else None
        """Of each rank. None: a rank's position is its number."""
        self._begun = 0

    @property
    def size(self) -> int:
        return len(self.members)

    def next_collective(self) -> int:
        """A tag of its own for each collective, the same on every rank: several may be under way at once."""
        self._begun += 1
        return _COLLECTIVE | self._begun % _COLLECTIVE


class GroupNumbers:
    """The number of each group of ranks. Whoever knows the whole run hands them out: everybody is 0."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def number_of(self, members: tuple[int, ...]) -> int:
        """The same to every rank that asks."""
        return self._numbers.setdefault(members, len(self._numbers) + 1)


class Groups:
    """The groups that one rank is in, in one leg of the run.

    `number_of` gives the number of a group: the same to every rank that asks. Groups of another leg have other numbers,
    so that messages of one leg never meet those of another.
    """

    __slots__ = ("_found", "_hosts", "_leg", "_number_of", "_rank", "everybody")

    def __init__(
        self, rank: int, hosts: Sequence[int], number_of: Callable[[tuple[int, ...]], int], *, leg: int = 0
    ) -> None:
        self._leg = leg
        self._rank = rank
        self._hosts = hosts
        self._number_of = number_of
        # Those of later legs are counted down from the last number: nobody needs to be asked.
        number = _MAX_GROUPS - leg if leg else 0
        self.everybody = Group(number, range(len(hosts)), rank, hosts, place=0)
        self._found: dict[Sequence[int], Group] = {self.everybody.members: self.everybody}

    def find(self, members: Sequence[int]) -> Group:
        """The group of these ranks, in this order."""
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
        number = self._number_of((-self._leg, *members)) if self._leg else place
        assert 0 < number < _MAX_GROUPS, "a run has not so many groups"
        hosts = tuple(self._hosts[member] for member in members)
        return Group(number, members, self._rank, hosts, place=place)

    def _check(self, members: tuple[int, ...]) -> None:
        ranks = self.everybody.size
        if len(set(members)) != len(members):
            raise ConfigurationError("group", "must name each rank once", members)
        outside = [member for member in members if not 0 <= member < ranks]
        if outside:
            raise ConfigurationError("group", f"must name ranks 0 to {ranks - 1}", outside[0])
        if self._rank not in members:
            raise ConfigurationError("group", f"must contain the rank that calls, {self._rank}", members)
