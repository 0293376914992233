"""The cluster that the options of a command describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.clusters.base.job import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options that describe the cluster. Their consistency is checked before torch is loaded."""

    workers: int | None
    """None for 4, or for all ranks of a described cluster."""
    slow: Sequence[str]
    delay: Sequence[str]
    deadline: str | None
    simulate: bool
    bandwidth: str | None
    latency: str | None
    compute: str | None
    link: str | None = None
    ray: str | None = None
    """Address of a Ray cluster; empty for a private one, None if Ray is not used."""
    spark: str | None = None
    """Master of Spark; empty for a private one, None if Spark is not used."""
    encrypt: bool | None = None
    threads: int | None = None
    device: str | None = None
    cluster_name: str | None = None
    """Name or file of a description."""
    hosts: int | None = None
    slow_link: Sequence[str] = ()
    math: str | None = None
    min_workers: int | None = None
    restart: bool = False
    calibration: Path | None = None
    fault: Sequence[str] = ()
    emulates: bool = False
    """Whether the command can emulate machines and links with local workers."""

    def __post_init__(self) -> None:
        described = {
            "--compute": self.compute,
            "--bandwidth": self.bandwidth,
            "--latency": self.latency,
            "--slow-link": self.slow_link or None,
        }
        for option, value in described.items():
            if value is not None and not self.simulate and not self.emulates:
                raise ConfigurationError(option, "needs --simulate", value, "add --simulate or omit it")
        if self.math is not None and not self.simulate:
            remedy = "add --simulate or omit it: real workers always compute"
            raise ConfigurationError("--math", "needs --simulate", self.math, remedy)
        if self.calibration is not None:
            self._check_calibration(self.calibration)
        if self.deadline is not None and self.simulate:
            remedy = "omit it: simulated workers that never stop waiting are reported as a deadlock"
            raise ConfigurationError("--deadline", "is for real workers", self.deadline, remedy)

        if self.device is not None and self.simulate:
            remedy = "omit it: simulated workers use the CPU"
            raise ConfigurationError("--device", "is for real workers", self.device, remedy)
        if self.hosts is not None and self.cluster_name is None:
            remedy = "add --cluster dgx-a100, for example, or omit it"
            raise ConfigurationError("--hosts", "needs --cluster", self.hosts, remedy)
        if self.cluster_name is not None:
            self._check_described(self.cluster_name)
        if self.link is not None:
            self._check_link(self.link)
        for option, value in {"--ray": self.ray, "--spark": self.spark}.items():
            if value is not None:
                self._check_real(option)
        if self.encrypt is not None and self.link != "tcp" and self.ray is None and self.spark is None:
            option = "--encrypt" if self.encrypt else "--no-encrypt"
            remedy = "add one of these, or omit it"
            raise ConfigurationError(option, "needs --link tcp, --ray or --spark", self.encrypt, remedy)

    def _check_described(self, name: str) -> None:
        excluded = {
            "--bandwidth": self.bandwidth,
            "--latency": self.latency,
            "--link": self.link,
            "--ray": self.ray,
            "--spark": self.spark,
        }
        for option, value in excluded.items():
            if value is not None:
                remedy = "omit one of the two: a description has its own links"
                raise ConfigurationError("--cluster", f"excludes {option}", name, remedy)

    def _check_calibration(self, path: Path) -> None:
        if not self.simulate:
            remedy = "add --simulate or omit it: real workers take their own time"
            raise ConfigurationError("--calibration", "needs --simulate", str(path), remedy)
        if self.cluster_name is not None:
            remedy = "omit one of the two: a description has its own machines"
            raise ConfigurationError("--calibration", "excludes --cluster", str(path), remedy)

    def _check_link(self, link: str) -> None:
        if self.simulate and self.calibration is not None:
            return
        if self.simulate:
            remedy = "omit it: --bandwidth and --latency describe simulated links"
            raise ConfigurationError("--link", "is for real workers", link, remedy)
        for option, value in {"--bandwidth": self.bandwidth, "--latency": self.latency}.items():
            if value is not None:
                remedy = "a link is either real or emulated: omit one of them"
                raise ConfigurationError("--link", f"excludes {option}", link, remedy)

    def _check_real(self, runner: str) -> None:
        """Refuse options that a cluster of other machines, such as --ray, does not have."""
        excluded = {
            "--simulate": self.simulate or None,
            "--link": self.link,
            "--bandwidth": self.bandwidth,
            "--latency": self.latency,
            "--slow-link": self.slow_link or None,
            "--compute": self.compute,
            "--fault": self.fault or None,
            "--min-workers": self.min_workers,
            "--restart": self.restart or None,
            "--ray": self.ray if runner == "--spark" else None,
        }
        for option, value in excluded.items():
            if value is not None:
                remedy = f"omit one of the two: {runner} uses workers and links as they are"
                raise ConfigurationError(runner, f"excludes {option}", value, remedy)

    def cluster(self) -> Cluster:
        """Return the cluster."""
        import paceline as pl
        from paceline.costs.stragglers import parse_delays, parse_slow
        from paceline.faults import parse as parse_fault

        slow = parse_slow(",".join(self.slow)) if self.slow else {}
        options = self._described_options() | ({} if self.simulate else self._real_options())
        if self.cluster_name is None:
            options["workers"] = 4 if self.workers is None else self.workers
        options |= {"slow": slow} if slow or self.cluster_name is None else {}
        delay = parse_delays(self.delay)
        options |= {"delay": delay} if delay is not None else {}
        if self.min_workers is not None:
            options["min_workers"] = self.min_workers
        if self.restart:
            options["restart"] = True
        if self.fault:
            options["faults"] = [parse_fault(text) for text in self.fault]
        if self.threads is not None:
            options["threads"] = self.threads
        if self.device is not None:
            options["device"] = self.device
        if self.cluster_name is not None:
            described = pl.load_cluster(self.cluster_name, hosts=self.hosts)
            kind = pl.Simulated if self.simulate else pl.Local
            return kind.of(described, workers=self.workers, **options)
        # Created last, because this loads torch. Invalid options are rejected before.
        if self.ray is not None:
            return pl.Ray(self.ray or None, encrypt=self.encrypt, **options)
        if self.spark is not None:
            return pl.Spark(self.spark or None, encrypt=self.encrypt, **options)
        return pl.Simulated(**options) if self.simulate else pl.Local(**options)

    def _real_options(self) -> dict[str, Any]:
        from paceline.costs.units import parse_seconds

        options: dict[str, Any] = {}
        if self.link is not None:
            options |= {"link": self.link, "encrypt": bool(self.encrypt)}
        if self.deadline is not None:
            options["deadline_s"] = parse_seconds(self.deadline, "--deadline")
        return options

    def _described_options(self) -> dict[str, Any]:
        """Return the options of simulated or emulated machines and links."""
        from paceline.costs import times
        from paceline.costs.link import Link
        from paceline.costs.slow_links import parse_slow_links

        given = {"bandwidth": self.bandwidth, "latency": self.latency}
        link = {name: value for name, value in given.items() if value is not None}
        options: dict[str, Any] = {"link": Link(**link)} if link else {}
        if self.calibration is not None:
            from paceline.costs.calibration import Calibration

            options["calibration"] = Calibration.load(self.calibration)
            options |= {"link": self.link} if self.link is not None else {}
        if self.slow_link:
            options["slow_links"] = parse_slow_links(self.slow_link)
        if self.math is not None:
            options["math"] = self.math
        if self.compute is not None:
            options["compute"] = times.parse(self.compute, "--compute")
        return options
