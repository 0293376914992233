"""A rank in a real process that drops the incomplete step when a member of the run is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from paceline.clusters.base.job import Job
from paceline.clusters.base.members import Arrival, Membership
from paceline.clusters.process.computing import ComputeOperation
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.driver import LocalDriver, NewGeneration
from paceline.clusters.process.waits import Waits
from paceline.clusters.process.wiring import Wiring
from paceline.links.operation import Activity
from paceline.model.devices import CPU


class RegroupingProcess(ProcessContext):
    """Context of a rank in a local run with `min_workers`."""

    def __init__(
        self,
        *arguments: Any,
        wire: Callable[[NewGeneration], Wiring],
        reload: Callable[[], Job],
        **settings: Any,
    ) -> None:
        """`wire` connects this rank to the members of a generation. `reload` returns the job with the initial model.

        The other arguments are those of the base class.
        """
        super().__init__(*arguments, **settings)
        self._reload = reload
        self._wire = wire
        self._begins: NewGeneration | None = None

    @property
    def _local_driver(self) -> LocalDriver:
        assert isinstance(self.driver, LocalDriver)
        return self.driver

    def _new_waits(self) -> Waits:
        waits = super()._new_waits()
        waits.members_changed = lambda: self.members_changed
        waits.report_late = self._local_driver.report_late
        return waits

    @property
    def members_changed(self) -> bool:
        return self.board.wanted_generation != self.generation

    def prepare(self) -> None:
        self.tell_news()  # opens the journal, which a thread may use first
        super().prepare()

    def tell_dropped(self, first: int) -> None:
        if self._teller is not None:  # a server cannot be lost
            self.driver.tell_news(self._teller.drop(first))

    async def meet_members(self, arrival: Arrival) -> Membership | None:
        self.waits.abandon()
        if ComputeOperation._under_way is not None:
            ComputeOperation._under_way.result()
        self.board.note_doing(self.rank, Activity.working)
        self._begins = self._local_driver.meet(arrival)
        return None if self._begins is None else self._begins.membership

    def rebuild_model(self) -> None:
        self.job = self._reload()
        self.model = self._open_model(self.port.device or CPU)

    def rewire(self, membership: Membership) -> None:
        assert self._begins is not None
        wiring = self._wire(self._begins)
        self.wiring, device = wiring, self.port.device
        self.port, self.waits = self._open_port(), self._new_waits()
        self.port.device = device
        for rank in range(self.job.ranks):
            if rank not in membership.members:
                self.waits.do_without(rank)  # a wait for any rank
        for each in cast(list[RegroupingProcess], [self, *self.twins]):
            each.wiring, each.port, each.waits = wiring, self.port, self.waits
        self.renew_net()
