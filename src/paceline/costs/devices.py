"""Devices: operations per second and memory bandwidth. Simulations compute prices from them.

Peaks are from NVIDIA's data sheets, for dense products of 16-bit numbers: "A100 Tensor Core GPU" (SXM, 80 GB:
312 Tflop/s, 2,039 GB/s), "H100 Tensor Core GPU" (SXM, without sparsity: 989 Tflop/s, 3.35 TB/s), "V100 Tensor Core GPU"
(SXM2, 32 GB: 125 Tflop/s, 900 GB/s). No program reaches these peaks.

The three constants of the A100 (`efficiency`, `memory_efficiency`, `launch`) are fitted to half of 387 published runs
of Megatron-LM by `python -m benchmarks.published --fit`: see docs/predict.md. The constants of the V100 are the same.
An H100 reaches less of its peak, because power limits its clock: 0.7 is an estimate. To change one, write
`dataclasses.replace(pl.devices.A100, efficiency=0.45)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.costs.units import check_positive, parse_bandwidth, parse_bytes, parse_seconds
from paceline.errors import ConfigurationError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device: matrix products run at `flops` x `efficiency`. All other operations run at the memory bandwidth, and so
    do reads of the weights of matrix products.

    A pass of many short operations takes as long as the host needs to start them.
    """

    name: str
    flops: float
    """Peak floating-point operations per second of matrix products."""
    efficiency: float = 0.5
    """Fraction of the peak that large products reach."""
    memory_bytes_per_s: float
    memory_efficiency: float = 1.0
    """Fraction of the memory bandwidth that other operations reach."""
    memory_bytes: int
    launch: str | float = field(default=0.0, compare=False)
    """Time that the host takes to start one operation, such as "50us". A pass takes at least as long as its starts."""
    launch_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(self.flops, "Device.flops", "write 312e12 for 312 Tflop/s")
        for name in ("efficiency", "memory_efficiency"):
            value = getattr(self, name)
            check_positive(value, f"Device.{name}", "about 0.5 to 0.8 is common")
            if value > 1:
                raise ConfigurationError(f"Device.{name}", "must be at most 1", value, "it is a fraction")
        object.__setattr__(self, "launch_s", parse_seconds(self.launch, "Device.launch"))
        check_positive(self.memory_bytes_per_s, "Device.memory_bytes_per_s", "write 2e12 for 2 TB/s")
        check_positive(self.memory_bytes, "Device.memory_bytes", "write 80 * 10**9 for 80 GB")

    def seconds(self, flops: float, moved_bytes: float, launches: float = 0) -> float:
        """Return the seconds for operations of matrix products, and bytes read and written by other operations.

        The host starts `launches` operations, one after the other. If they are short, the device waits for the host.
        """
        computes_s = flops / (self.flops * self.efficiency)
        moves_s = moved_bytes / (self.memory_bytes_per_s * self.memory_efficiency)
        return max(computes_s + moves_s, launches * self.launch_s)

    def __str__(self) -> str:
        return f"{self.name} at {self.efficiency:.0%} of {self.flops / 1e12:g} Tflop/s"


A100 = Device(
    name="A100",
    flops=312e12,
    efficiency=0.912,
    memory_bytes_per_s=2.039e12,
    memory_efficiency=0.548,
    memory_bytes=80 * 10**9,
    launch="50.9us",
)
H100 = replace(
    A100, name="H100", flops=989e12, efficiency=0.7, memory_bytes_per_s=3.35e12, memory_bytes=80 * 10**9
)
V100 = replace(A100, name="V100", flops=125e12, memory_bytes_per_s=0.9e12, memory_bytes=32 * 10**9)


def CPU(  # noqa: N802
    flops: float = 50e9,
    memory_bandwidth: str | float = "10GB/s",
    memory: str | int = "16GB",
    *,
    efficiency: float = 1.0,
) -> Device:
    """Return a CPU. The default is one core, with the operations per second that large products reach there."""
    return Device(
        name="CPU",
        flops=flops,
        efficiency=efficiency,
        memory_bytes_per_s=parse_bandwidth(memory_bandwidth, "CPU.memory_bandwidth"),
        memory_bytes=parse_bytes(memory, "CPU.memory"),
    )


def device_of(given: object) -> Device:
    """Return a device, given a device or its name."""
    known = {device.name: device for device in (A100, H100, V100, CPU())}
    if isinstance(given, Device):
        return given
    if not isinstance(given, str):
        remedy = "write pl.devices.A100, or pl.devices.Device(…)"
        raise ConfigurationError("device", "must be one of pl.devices", given, remedy)
    if given.upper() not in known:
        raise UnknownNameError("device", given, sorted(known))
    return known[given.upper()]
