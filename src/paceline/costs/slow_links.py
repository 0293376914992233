"""Single links that differ from the others: one pair of ranks with a link of its own, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from paceline.costs.link import Link
from paceline.errors import ConfigurationError

FORMS = 'write two ranks and a bandwidth, such as "0-3:100Mbps"'
_REMEDY = 'write {(0, 3): "100Mbps"}, or {(0, 3): pl.Link("100Mbps", "5ms")}'
_SLOW_LINK = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*:(.+)", re.ASCII)

SlowLinks = dict[tuple[int, int], Link]
"""Links by pair of ranks, the smaller rank first."""


def slow_links(given: object, link: object) -> SlowLinks:
    """Check and complete the argument `slow_links`. A bandwidth alone has the latency of `link`, the other links'."""
    if not isinstance(given, Mapping):
        raise ConfigurationError("slow_links", "must be a mapping of two ranks to a link", given, _REMEDY)
    if given and not isinstance(link, Link):
        remedy = 'write link=pl.Link("10Gbps", "50us"), or omit slow_links'
        raise ConfigurationError("slow_links", "needs a pl.Link between the other ranks", given, remedy)
    made: SlowLinks = {}
    for ranks, value in given.items():
        pair = _pair(ranks)
        if pair in made:
            raise ConfigurationError(
                "slow_links", f"must name ranks {pair[0]} and {pair[1]} once", given, _REMEDY
            )
        assert isinstance(link, Link)
        made[pair] = value if isinstance(value, Link) else Link(value, link.latency, link.message)
    return made


def check_ranks(links: SlowLinks, ranks: int) -> None:
    """Refuse ranks that a run of `ranks` ranks does not have."""
    for pair in links:
        if pair[1] >= ranks:
            remedy = f"this run has {ranks} rank{'s' if ranks > 1 else ''}"
            raise ConfigurationError("slow_links", f"must name ranks 0 to {ranks - 1}", pair, remedy)


def parse_slow_links(texts: Iterable[str]) -> dict[tuple[int, int], str]:
    """Parse the values of a repeatable option, such as "0-3:100Mbps"."""
    made = {}
    for text in texts:
        match = _SLOW_LINK.fullmatch(text)
        if match is None:
            raise ConfigurationError("--slow-link", "must be rank-rank:bandwidth", text, FORMS)
        made[int(match[1]), int(match[2])] = match[3].strip()
    return made


def words(links: SlowLinks) -> list[str]:
    """Return a description of each slow link."""
    return [f"ranks {a} and {b} by {link}" for (a, b), link in sorted(links.items())]


def _pair(pair: object) -> tuple[int, int]:
    ranks = pair if isinstance(pair, tuple) else ()
    if len(ranks) != 2 or not all(type(rank) is int and rank >= 0 for rank in ranks) or ranks[0] == ranks[1]:
        raise ConfigurationError("slow_links", "must name two different ranks, from 0", pair, _REMEDY)
    return min(ranks), max(ranks)
