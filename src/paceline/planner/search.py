"""The search of a plan: which configurations are predicted, and in which order.

For the largest number of workers, each strategy starts with all combinations of its leading parameters. The best of
them are then changed in one parameter at a time, as long as that helps. The search with half the workers begins with
the best configurations for all workers, and so on. A strategy declares the values itself
(`strategies/shared/search_space.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from paceline.context import Strategy
from paceline.errors import ConfigurationError, PacelineError
from paceline.planner.entry import Entry
from paceline.planner.estimate import Choice, Estimator
from paceline.planner.sizing import PlannedCluster
from paceline.strategies import describe, parse
from paceline.strategies.registry.search_space import allows, neighbours, starts, unsuited
from paceline.strategies.shared.search_space import Scope

MOST = 400
"""Predictions of a plan."""
_BEAM = 1
_TURNS = 3
_HOPELESS = 1.15
"""A combination is not changed further if its value is this many times the best so far."""
_HOPELESS_BYTES = 3.0
"""The same for its memory."""
_LEADERS = 3
"""Number of strategies that are tried with fewer workers."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a search."""

    tried: int
    """Number of configurations."""
    most: int
    name: str
    """The strategy and the number of workers that are tried, or what is measured first."""
    calibrates: bool = False
    """Whether this machine is measured first."""


Watch = Callable[[SearchProgress], None]
Key = Callable[[Entry], float]


@dataclass(slots=True)
class Search:
    """A search for the configuration with the smallest `key`."""

    estimator: Estimator
    key: Key
    names: Sequence[str]
    """Strategies."""
    batch_size: int
    codecs: Sequence[str] = ()
    """Codecs to try with the best configurations."""
    is_given: bool = False
    """Whether the user has named the strategies. They are then tried even where they are unsuited."""
    aims: bool = True
    """Whether times to a target are estimated. If not, strategies without the weights of `single` are not ranked, so
    that their parameters are not changed further."""
    both_recompute: bool = True
    watch: Watch | None = None
    most: int = MOST
    found: dict[Choice, Entry] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Strategies that were not tried, and the reasons."""
    was_cut: bool = False
    """Whether the search ended at the limit."""

    def run(self, counts: Sequence[int]) -> None:
        """Search with each of these numbers of workers, largest first."""
        for number, workers in enumerate(counts):
            if number == 0:
                for name in self.names:
                    self._try_strategy(name, workers)
            else:
                for best in self._leaders(counts[number - 1]):
                    self._scale_down(best, workers)

    def try_codecs(self) -> None:
        """Add each codec to the fastest entry of each strategy that has codecs, with each number of workers.

        What a strategy with this codec refuses is left out.
        """
        fastest: dict[tuple[str, int], Entry] = {}
        for entry in sorted(self.found.values(), key=self._order):
            if entry.workers > 1:
                fastest.setdefault((entry.family, entry.workers), entry)
        for entry in fastest.values():
            for strategy in self._within(_with_codecs(parse(entry.strategy), self.codecs), entry.workers):
                if allows(strategy, entry.workers):
                    self._entry(strategy, entry.workers, entry.recompute)

    def _scope(self, workers: int) -> Scope:
        cluster = self.estimator.cluster
        return Scope(
            workers=workers,
            per_host=min(cluster.per_host, workers),
            batch_size=self.batch_size,
            shares_memory=_shares_memory(cluster),
        )

    def _try_strategy(self, name: str, workers: int) -> None:
        scope = self._scope(workers)
        reason = "" if self.is_given else unsuited(name, scope)
        if reason:
            self.refused[name] = reason
            return
        try:
            first = [self._entry(each, workers) for each in self._within(starts(name, scope), workers)]
        except ConfigurationError as error:
            self.refused[name] = _brief(error)
            return
        entries = [entry for entry in first if isinstance(entry, Entry)]
        if not entries:
            errors = [each for each in first if isinstance(each, PacelineError)]
            self.refused[name] = _brief(errors[0]) if errors else "it was beyond the limit of the search"
            return
        for start in self._chosen(entries):
            self._improve(start)

    def _within(self, strategies: Iterable[Strategy], workers: int) -> Iterable[Strategy]:
        """Yield strategies until the limit of the search."""
        for strategy in strategies:
            if self.estimator.count >= self.most:
                self.was_cut = True
                return
            yield strategy

    def _chosen(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the best that fit, and the fastest that do not: a change may make them fit."""
        fitting = sorted((each for each in entries if each.prediction.fits), key=self.key)
        others = sorted((each for each in entries if not each.prediction.fits), key=self.key)
        return [*fitting[:_BEAM], *others[: _BEAM if len(fitting) < _BEAM else 1]]

    def _improve(self, start: Entry) -> None:
        if self._is_hopeless(start) or not (self.aims or start.equals_single):
            return
        best = start
        for _ in range(_TURNS):
            better = min(self._around(best), key=self._order, default=best)
            if self._order(better) >= self._order(best):
                return
            best = better

    def _is_hopeless(self, start: Entry) -> bool:
        """Return whether changes of one parameter at a time will hardly make an entry the best."""
        if not start.prediction.fits:
            limit = start.prediction.device_bytes or 0
            return start.misses_bytes > (_HOPELESS_BYTES - 1) * limit
        return self.key(start) > _HOPELESS * self._least(start)

    def _least(self, start: Entry) -> float:
        """Return the smallest key so far of entries that can be compared with this one.

        Batches of strategies with the weights of `single` are worth the same. Others are compared with their family.
        """
        known = (
            each
            for each in self.found.values()
            if (each.equals_single if start.equals_single else each.family == start.family)
        )
        return min((self.key(each) for each in known if each.prediction.fits), default=float("inf"))

    def _around(self, entry: Entry) -> list[Entry]:
        """Predict all configurations that differ in one parameter."""
        scope = self._scope(entry.workers)
        strategies = self._within(neighbours(parse(entry.strategy), scope), entry.workers)
        found = [self._entry(each, entry.workers, entry.recompute) for each in strategies]
        if self.both_recompute:
            found.append(self._entry(parse(entry.strategy), entry.workers, not entry.recompute))
        return [each for each in found if isinstance(each, Entry)]

    def _order(self, entry: Entry) -> tuple[float, float]:
        """Return a sort key. Entries that fit come first, then those that lack the least memory."""
        return entry.misses_bytes, self.key(entry)

    def _entry(
        self, strategy: Strategy, workers: int, recompute: bool | None = None
    ) -> Entry | PacelineError:
        """Predict one configuration. Its number of workers is the number that the strategy uses."""
        used = sum(role != "server" for role in strategy.roles(workers))
        again = bool(self.estimator.task.recompute) if recompute is None else recompute
        choice = Choice(describe(strategy), used, again)
        if choice not in self.found:
            if self.watch is not None:
                name = f"{choice.strategy} on {used} worker{'s' * (used != 1)}"
                self.watch(SearchProgress(self.estimator.count, self.most, name))
            prediction = self.estimator.prediction(choice)
            if isinstance(prediction, PacelineError):
                return prediction
            self.found[choice] = Entry.of(choice, prediction, self.estimator)
        return self.found[choice]

    def _leaders(self, workers: int) -> list[Entry]:
        """Return the best entry of each of the best strategies, with this number of workers."""
        ranked = sorted((each for each in self.found.values() if each.workers == workers), key=self._order)
        best: dict[str, Entry] = {}
        for entry in ranked:
            best.setdefault(entry.family, entry)
        return list(islice(best.values(), _LEADERS))

    def _scale_down(self, best: Entry, workers: int) -> None:
        scope = self._scope(workers)
        strategy = parse(best.strategy)
        tried = [strategy] if allows(strategy, workers) else neighbours(strategy, scope)
        found = [self._entry(each, workers, best.recompute) for each in self._within(tried, workers)]
        entries = [each for each in found if isinstance(each, Entry)]
        if entries:
            self._improve(min(entries, key=self._order))


def _with_codecs(strategy: Any, codecs: Iterable[str]) -> Iterator[Strategy]:
    """Yield the strategy with each of the codecs that it supports, with its algorithm or else with the default one."""
    if not hasattr(strategy, "codec"):
        return
    defaults = {each.name: each.default for each in dataclasses.fields(strategy) if each.name == "algorithm"}
    for codec in codecs:
        for changes in ({"codec": codec}, {"codec": codec, **defaults}):
            try:
                yield dataclasses.replace(strategy, **changes)
            except ConfigurationError:
                continue
            break


def _shares_memory(cluster: PlannedCluster) -> bool:
    return not hasattr(cluster.simulated.link, "bandwidth")


def _brief(error: PacelineError) -> str:
    """Return the first line of an error."""
    return str(error).strip().splitlines()[0]
