"""One run in virtual time: its world, and the programs of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.clusters.base.job import Consult, Job
from paceline.clusters.base.outcome import Outcome, reporter_of
from paceline.clusters.base.threads import computing_threads
from paceline.clusters.rank.checkpoint_writer import prepare_all
from paceline.clusters.rank.failures import failure_of, with_holds
from paceline.clusters.simulated.calibrated import (
    calibrated_costs,
    calibrated_link,
    calibrated_passes,
    copy_s_per_byte,
    shared_cores,
    threads_of,
    window_link,
)
from paceline.clusters.simulated.context import SimulatedContext
from paceline.clusters.simulated.data import shared_data
from paceline.clusters.simulated.fault_injector import FaultInjector
from paceline.clusters.simulated.faulty_network import LossyNetwork
from paceline.clusters.simulated.gradient_timer import GradientTimer
from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.models import counted_prices, replica_maker, whole_replica
from paceline.clusters.simulated.network import Network
from paceline.clusters.simulated.pass_timer import PassTimer
from paceline.clusters.simulated.regrouping import Regrouping
from paceline.clusters.simulated.world import World
from paceline.costs.calibration import SHARED_MEMORY
from paceline.costs.devices import device_of
from paceline.costs.measured import Measured
from paceline.costs.prices import Given, Pricing
from paceline.costs.slow_links import slow_links
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import Cancelled
from paceline.faults import faults_of_ranks
from paceline.model.replica import Replica
from paceline.runs.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.simulated.simulated import Simulated

_KEPT = 64
"""Number of buffered batches of a stream. Workers in virtual time share it, and may be some steps apart."""


class Simulation:
    """A job on a simulated cluster."""

    def __init__(self, cluster: Simulated, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._computes = cluster.math == "real" and cluster.known is None
        self._may_lose = bool(cluster.faults) or job.min_workers is not None

    def run(self, progress: Callable[[Progress], None] | None, consult: Consult | None) -> list[Outcome]:
        """Run the programs of all ranks to their end. Raise the error that ended them early."""
        job = self._job
        world = self._world(progress)
        world.consult = consult
        contexts = self._contexts(world)
        prepare_all(contexts, job)
        processes = world.programs
        for context in contexts:
            context.begin_program()
        try:
            world.kernel.run(processes)
            outcomes = [context.finish() for context in contexts]
            results = [context.result for context in contexts]
        except (Exception, SystemExit, Cancelled) as error:
            holds = {context.rank: context.outcome.holds for context in contexts}
            for context in contexts:
                of_rank = context.has_raised(error) and error is not world.callback_error
                if of_rank:
                    raise with_holds(failure_of(context.rank, context.step, error), holds) from None
            with_holds(error, holds)
            raise
        finally:
            world.network.close()
            for process in processes:
                process.cancel()  # after an error some ranks may not have begun
            for context in contexts:
                context.close()
        for outcome, result in zip(outcomes, results, strict=True):
            outcome.result = result
        if world.generations is not None:
            reporter_of(job, outcomes).generations = world.generations.all
        return outcomes

    def _world(self, progress: Callable[[Progress], None] | None) -> World:
        cluster, job, kernel = self._cluster, self._job, Kernel()
        fabric = cluster.fabric
        hosts = fabric.place(job.ranks, job.workers)
        task, real = job.task, self._computes
        samples = Samples.of(task, job.seed, kept=_KEPT) if task else None
        batches = GlobalBatches.of(task, samples, job.seed) if task and samples else None
        world = World(
            kernel=kernel,
            network=(LossyNetwork if self._may_lose else Network)(
                kernel,
                hosts,
                cluster.between,
                cluster.memory,
                slow_links(cluster.slow_links, cluster.link),
                fabric.shared(hosts),
                half_duplex=calibrated_link(cluster) is not None,
            ),
            hosts=hosts,
            memory=window_link(cluster),
            shares_memory=cluster.link == SHARED_MEMORY and not job.regroups,
            pricing=self._pricing(samples, batches),
            stragglers=cluster.stragglers,
            data=shared_data(job, samples, batches),
            samples=samples if real else None,
            test_samples=Samples.of_test(task) if task and real else None,
            last_step=job.steps,
            progress=progress,
            computing_s=[0.0] * job.ranks,
            computations=[0] * job.ranks,
            cores=shared_cores(cluster, kernel, job.workers),
        )
        if self._computes and cluster.measures and cluster.measured is None and world.data is not None:
            world.pass_timer = PassTimer(lambda: whole_replica(job), world.data.source)
        elif (passes := calibrated_passes(cluster, job)) is not None:
            world.pass_timer, world.copy_s_per_byte = passes, copy_s_per_byte(cluster)
        return world

    def _pricing(self, samples: Samples | None, batches: GlobalBatches | None) -> Pricing:
        cluster, job = self._cluster, self._job
        if cluster.known is not None:
            return cluster.known.pricing
        if cluster.compute is not None:
            return Given(cluster.compute)
        if samples is None or batches is None:
            return Measured(0.0, 0.0)
        if cluster.device is not None:
            return counted_prices(device_of(cluster.device), job, samples, batches)
        if (known := calibrated_costs(cluster, job)) is not None:
            return known
        if cluster.measured is None:
            return GradientTimer(lambda: whole_replica(job), samples, batches, job.workers)
        threads = threads_of(cluster, cluster.workers)
        timer = GradientTimer(lambda: whole_replica(job), samples, batches, cluster.workers)
        with computing_threads(threads):
            return cluster.measured.of(timer)

    def _contexts(self, world: World) -> Sequence[SimulatedContext]:
        make = replica_maker(self._job, computes=self._computes, known=self._cluster.known)
        if self._may_lose:
            return self._injector(world, make).contexts()
        return [SimulatedContext(world, self._job, rank, make(rank)) for rank in range(self._job.ranks)]

    def _injector(self, world: World, make_replica: Callable[[int], Replica | None]) -> FaultInjector:
        job = self._job
        faults = faults_of_ranks(self._cluster.faults, job.ranks)
        if job.regroups:
            restarts = self._cluster.restart
            injector: FaultInjector = Regrouping(world, job, faults, make_replica, restarts=restarts)
        else:
            injector = FaultInjector(world, job, faults, make_replica)
        world.generations = injector.generations
        return injector
