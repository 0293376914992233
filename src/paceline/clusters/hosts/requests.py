"""Requests of ranks on several hosts to the hub: numbers of updates and groups, end of the run, memory, rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.clusters.base.job import Job
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.clusters.rank.counter import UpdateCounter
from paceline.clusters.rank.groups import GroupNumbers

Answer = Callable[..., None]
Tell = Callable[..., None]


class Requests:
    """Open requests, and the state needed to answer them. An answer has the same word as its request."""

    def __init__(self, job: Job, board: StatusBoard, tell: Tell) -> None:
        self._job = job
        self._board = board
        self._tell = tell
        self.hosts: Sequence[int] = ()
        self._updates = UpdateCounter()
        self._groups = GroupNumbers()
        self._paths: dict[tuple[int, str], str | None] = {}
        self._makers: dict[tuple[int, str], int] = {}
        self._waiting: dict[tuple[int, str], list[tuple[int, Letter, Answer]]] = {}
        self._telling: _Round | None = None
        self._rows: dict[int, _Round] = {}

    def take(self, rank: int, letter: Letter, answer: Answer) -> None:
        words = {
            "count": self._count,
            "group": self._number_group,
            "end_after": self._end_after,
            "last_step": self._noted_news,
            "announce_end": self._announce_end,
            "announced_end": self._noted_news,
            "announce": self._announce,
            "metric": self._noted_news,
            "memory": self._find_memory,
            "made": self._note_memory,
            "arrive": self._pass_on,
            "rows": self._gather_rows,
            "row": self._note_row,
        }
        if letter.word in words:
            words[letter.word](rank, letter, answer)

    def forget(self, rank: int) -> None:
        """Handle a lost rank: stop waiting for its parts."""
        for each in (self._telling, *self._rows.values()):
            if each is not None:
                each.do_without(rank)
        for key in [key for key, maker in self._makers.items() if maker == rank]:
            if (
                self._paths[key] is None
            ):  # the rank died before it created the memory: another rank creates it
                del self._paths[key]
                for request in self._waiting.pop(key, []):
                    self._find_memory(*request)

    def _others(self) -> list[int]:
        return [rank for rank in range(self._job.ranks) if self._board.status(rank) is Status.RUNNING]

    def _count(self, rank: int, letter: Letter, answer: Answer) -> None:
        answer({**letter.values, "count": self._updates.count(letter.values["first"])})

    def _number_group(self, rank: int, letter: Letter, answer: Answer) -> None:
        answer({**letter.values, "number": self._groups.number_of(tuple(letter.values["members"]))})

    # Notifications that all ranks must receive before the sender continues. Only the reporter sends them, one at a
    # time.

    def _end_after(self, rank: int, letter: Letter, answer: Answer) -> None:
        last_step = self._board.last_step = min(self._board.last_step, letter.values["step"] + 1)
        self._tell_all("last_step", {"last_step": last_step}, lambda: answer(letter.values))

    def _announce_end(self, rank: int, letter: Letter, answer: Answer) -> None:
        values = {"generation": letter.values["generation"], "word": letter.values["word"]}
        self._tell_all("announced_end", values, lambda: answer(letter.values))

    def _announce(self, rank: int, letter: Letter, answer: Answer) -> None:
        values = {name: letter.values[name] for name in ("evaluation", "metric")}
        self._tell_all("metric", values, lambda: answer(letter.values))

    def _tell_all(self, word: str, values: dict[str, Any], then: Callable[[], None]) -> None:
        self._telling = _Round(self._others(), lambda parts: then())
        for other in self._others():
            self._tell(other, word, values)

    def _noted_news(self, rank: int, letter: Letter, answer: Answer) -> None:
        if self._telling is not None:
            self._telling.note(rank, b"")

    # Memory of one host

    def _find_memory(self, rank: int, letter: Letter, answer: Answer) -> None:
        """Ask the first rank of a host to create the memory. Send the others its path once it exists."""
        key = (self.hosts[rank], letter.values["name"])
        if key not in self._paths:
            self._paths[key], self._makers[key] = None, rank
            answer({**letter.values, "path": ""})
        elif self._paths[key] is None:
            self._waiting.setdefault(key, []).append((rank, letter, answer))
        else:
            answer({**letter.values, "path": self._paths[key], "maker": self._makers[key]})

    def _note_memory(self, rank: int, letter: Letter, answer: Answer) -> None:
        key, path = (self.hosts[rank], letter.values["name"]), letter.values["path"]
        self._paths[key] = path
        for request in self._waiting.pop(key, []):
            self._find_memory(*request)

    # Row boards of the workers

    def _pass_on(self, rank: int, letter: Letter, answer: Answer) -> None:
        """Notify the other workers that one has arrived at a barrier."""
        for other in range(self._job.workers):
            if other != rank:
                self._tell(other, "arrive", {**letter.values, "rank": rank})

    def _gather_rows(self, rank: int, letter: Letter, answer: Answer) -> None:
        workers = [
            worker for worker in range(self._job.workers) if self._board.status(worker) is not Status.LOST
        ]
        self._rows[rank] = _Round(  # several ranks may request rows at the same time
            workers,
            lambda rows: answer({**letter.values, "ranks": list(rows)}, list(rows.values())),
        )
        for worker in workers:
            self._tell(worker, "row", {"asker": rank, "board": letter.values["board"]})

    def _note_row(self, rank: int, letter: Letter, answer: Answer) -> None:
        if letter.blobs:
            self._rows[letter.values["asker"]].note(rank, letter.blobs[0])


class _Round:
    """A collection of one part from each of several ranks."""

    def __init__(self, ranks: Sequence[int], then: Callable[[dict[int, Any]], None]) -> None:
        self._missing = set(ranks)
        self._parts: dict[int, Any] = {}
        self._then: Callable[[dict[int, Any]], None] | None = then

    def note(self, rank: int, part: Any) -> None:
        if rank in self._missing:
            self._parts[rank] = part
            self.do_without(rank)

    def do_without(self, rank: int) -> None:
        self._missing.discard(rank)
        if not self._missing and self._then is not None:
            then, self._then = self._then, None
            then(dict(sorted(self._parts.items())))
