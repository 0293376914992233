"""When the ranks of a tensor group reach each step of a run: passes, and rings between them.

Ports are those of `network`: each carries one message at a time, ports in serve messages as they arrive. A ring's
messages come from the left neighbour alone, in order. Other messages that arrive meanwhile (of a pipeline, say) take
their turn at the port in: they are given as `Guest`s, and it is found out here when each is delivered.

Ranks that begin together, have equal work and equal guests stay together: then one of them is followed for all
(`follow_together`). Otherwise each is (`follow_each`). Both do what messages do one by one, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.clusters.simulated.run_plan import Ring

__all__ = ["Apart", "EachMark", "Guest", "Links", "Mark", "follow_each", "follow_together"]


class Apart(Exception):  # noqa: N818  (who follows them goes on with each)
    """Ranks that were together will not stay so in the next step."""


@dataclass(slots=True)
class Guest:
    """A message from outside the group that takes its turn at a port in."""

    arrives_s: float
    start_s: float
    """When it entered its sender's port: of those that arrive at one instant, the earlier goes first."""
    source: int
    carry_s: float
    begins_s: float = 0.0
    delivered_s: float = 0.0

    @property
    def alike(self) -> tuple[float, float, float]:
        """Equal for messages that come to different ranks of a group at the same time."""
        return self.arrives_s, self.start_s, self.carry_s

    def enter(self, in_free_s: float) -> float:
        """Take the port, which is free from a time on; until when."""
        self.begins_s = max(self.arrives_s, in_free_s)
        self.delivered_s = self.begins_s + self.carry_s
        return self.delivered_s


class Links(NamedTuple):
    """From each position of a ring to the next."""

    latency_s: Sequence[float]
    per_byte_s: Sequence[float]
    sources: Sequence[int]
    """The rank at each position."""

    @property
    def are_equal(self) -> bool:
        return len(set(self.latency_s)) == 1 and len(set(self.per_byte_s)) == 1


class Mark(NamedTuple):
    """How far ranks that stay together are at the end of a step."""

    now_s: float
    out_free_s: float
    in_free_s: float
    guests: int
    """How many had their turn."""


class EachMark(NamedTuple):
    """The same of ranks that are apart: of each."""

    now_s: list[float]
    out_free_s: list[float]
    in_free_s: list[float]
    guests: list[int]


def follow_together(
    steps: Sequence[tuple[float, int, float]], marks: list[Mark], latency_s: float, guests: Sequence[Guest]
) -> float:
    """Go on from the last mark to the end of the run, with a mark for each step; when the port in is free then.

    A step is seconds of a pass, or rounds of a ring and the seconds that each of its messages takes. Raises Apart.
    """
    now_s, out_s, in_s, turn = marks[-1]
    count, add = len(guests), marks.append
    for pass_s, rounds, carry_s in steps[len(marks) - 1 :]:
        if not rounds:
            now_s += pass_s
        elif turn == count and out_s <= now_s and in_s <= now_s + latency_s:
            for _ in range(rounds):
                now_s = now_s + latency_s + carry_s
            out_s = in_s = now_s  # the port out is free a little earlier, when nobody asks
        else:
            for _ in range(rounds):
                start_s = now_s if now_s > out_s else out_s
                out_s = start_s + carry_s
                arrives_s = start_s + latency_s
                while turn < count and _goes_first(guests[turn], arrives_s, start_s):
                    in_s = guests[turn].enter(in_s)
                    turn += 1
                in_s = (arrives_s if arrives_s > in_s else in_s) + carry_s
                now_s = out_s if out_s > in_s else in_s
        add(Mark(now_s, out_s, in_s, turn))
    for guest in guests[turn:]:
        in_s = guest.enter(in_s)
    return in_s


def _goes_first(guest: Guest, arrives_s: float, start_s: float) -> bool:
    if guest.arrives_s == arrives_s and guest.start_s == start_s:
        raise Apart  # the lower rank goes first, which may differ from rank to rank
    return (guest.arrives_s, guest.start_s) < (arrives_s, start_s)


def follow_each(
    steps: Sequence[tuple[Sequence[float], Ring | None]],
    marks: list[EachMark],
    links: Links,
    guests: Sequence[Sequence[Guest]],
) -> list[float]:
    """The same for ranks that are apart. A step is each rank's seconds of a pass, or a ring."""
    for pass_s, ring in steps[len(marks) - 1 :]:
        before = marks[-1]
        if ring is None:
            now_s = [now + seconds for now, seconds in zip(before.now_s, pass_s, strict=True)]
            marks.append(before._replace(now_s=now_s))
        else:
            marks.append(_go_round(ring, before, links, guests))
    in_free_s = list(marks[-1].in_free_s)
    for position, turn in enumerate(marks[-1].guests):
        for guest in guests[position][turn:]:
            in_free_s[position] = guest.enter(in_free_s[position])
    return in_free_s


def _go_round(ring: Ring, before: EachMark, links: Links, guests: Sequence[Sequence[Guest]]) -> EachMark:
    now, out, into = list(before.now_s), list(before.out_free_s), list(before.in_free_s)
    turns = list(before.guests)
    positions = range(len(now))
    if _are_together(ring, before, links, guests):
        end_s = now[0]
        for _ in range(ring.rounds):
            end_s = end_s + links.latency_s[0] + ring.sent_bytes[0][0] * links.per_byte_s[0]
        return EachMark([end_s] * len(now), [end_s] * len(now), [end_s] * len(now), turns)
    for lengths in ring.sent_bytes:
        starts = [max(now[p], out[p]) for p in positions]
        carries = [lengths[p] * links.per_byte_s[p] for p in positions]
        for p in positions:
            out[p] = starts[p] + carries[p]
        for p in positions:
            left = p - 1  # of the first, the last
            key = (starts[left] + links.latency_s[left], starts[left], links.sources[left])
            for guest in guests[p][turns[p] :]:
                if (guest.arrives_s, guest.start_s, guest.source) > key:
                    break
                into[p] = guest.enter(into[p])
                turns[p] += 1
            into[p] = max(key[0], into[p]) + carries[left]
            now[p] = max(out[p], into[p])
    return EachMark(now, out, into, turns)


def _are_together(ring: Ring, before: EachMark, links: Links, guests: Sequence[Sequence[Guest]]) -> bool:
    """Whether all begin a ring at once, have free ports, and do the same in it: after a ring that is usual."""
    now_s = before.now_s[0]
    return (
        before.now_s.count(now_s) == len(before.now_s)
        and max(before.out_free_s) <= now_s
        and max(before.in_free_s) <= now_s + links.latency_s[0]
        and ring.even_bytes is not None
        and links.are_equal
        and all(turn == len(line) for turn, line in zip(before.guests, guests, strict=True))
    )
