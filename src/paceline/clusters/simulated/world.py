"""State of a run in virtual time that all of its ranks share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from paceline.clusters.base.generations import GenerationLog
from paceline.clusters.base.job import Consult
from paceline.clusters.rank.counter import UpdateCounter
from paceline.clusters.rank.groups import GroupNumbers
from paceline.clusters.simulated.calibrated import CalibratedPasses
from paceline.clusters.simulated.cores import Cores
from paceline.clusters.simulated.data import SharedData
from paceline.clusters.simulated.group_operation import GroupOperation
from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.network import Network
from paceline.clusters.simulated.pass_timer import PassTimer
from paceline.clusters.simulated.process import Process
from paceline.clusters.simulated.stage_plan import StagePlan
from paceline.clusters.simulated.window import SimulatedWindow
from paceline.context import Hooks
from paceline.costs.link import Link
from paceline.costs.prices import Pricing
from paceline.costs.stragglers import Stragglers
from paceline.data.samples import Samples
from paceline.model.cutting.layers import Layers
from paceline.model.hooks.blocks import BlockLayers
from paceline.runs.run import Progress
from paceline.trace.spans import meeting_id


@dataclass(slots=True, kw_only=True)
class World:
    """State shared by all simulated ranks."""

    kernel: Kernel
    network: Network
    hosts: tuple[int, ...]
    memory: Link
    """Cost of the reads and barriers of a window."""
    shares_memory: bool
    """Whether ranks communicate through the memory of one host."""
    pricing: Pricing
    """Cost of computations."""
    stragglers: Stragglers
    data: SharedData | None
    samples: Samples | None
    """Samples for the computations. None if no mathematics is done."""
    test_samples: Samples | None
    last_step: int
    programs: list[Process[Any]] = field(default_factory=list)
    """Programs of all ranks."""
    updates: UpdateCounter = field(default_factory=UpdateCounter)
    """Counter of independent updates."""
    announced_ends: dict[int, int] = field(default_factory=dict)
    """Announced end of a generation, by its number."""
    progress: Callable[[Progress], None] | None = None
    consult: Consult | None = None
    generations: GenerationLog | None = None
    """Generations of members, if the run may continue without lost ranks."""
    callback_error: Exception | None = None
    """Error that a callback raised. It does not belong to a rank."""
    announced: dict[int, float] = field(default_factory=dict)
    """Metric of each evaluation, if ranks need it."""
    shown_s: float = 0.0
    computing_s: list[float] = field(default_factory=list)
    """Seconds that each rank has spent on computations. Updated only if progress is shown."""
    computations: list[int] = field(default_factory=list)
    """Number of computations that each rank has completed."""
    operations: dict[int, GroupOperation] = field(default_factory=dict)
    """Group operations that some of their ranks have not begun yet, by tag."""
    plans: dict[Hashable, StagePlan] = field(default_factory=dict)
    """Stage plans, computed once for all groups."""
    windows: dict[tuple[str, int], SimulatedWindow] = field(default_factory=dict)
    groups: GroupNumbers = field(default_factory=GroupNumbers)
    parameter_board: SimulatedWindow | None = None
    meetings: int = 0
    """Number of barriers passed, and of collectives and stages timed as a whole."""

    cores: Cores | None = None
    """Cores that the ranks share. None if each rank has its own."""
    pass_timer: PassTimer | CalibratedPasses | None = None
    """Measured times of passes through segments on this machine. None if the times are not measured."""
    copy_s_per_byte: float = 0.0
    """Cost of a copy by the processor, if it is known."""
    layers: dict[tuple[int, bool, Hooks, int], Layers | BlockLayers] = field(default_factory=dict)
    """Layers of a split model, by the size of a tensor group, whether it splits sequences, whether hooks replace
    segments, and the parts of a batch. Computed once for all ranks."""

    def next_meeting(self) -> int:
        """Return the id of a new meeting. The rings of a stage have consecutive ids that end with this one."""
        self.meetings += 1
        return meeting_id(self.meetings, 0)
