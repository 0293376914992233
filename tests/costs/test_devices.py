import dataclasses

import pytest
from refusals import has, refused, unknown

from paceline.costs import devices


@pytest.mark.parametrize(
    ("device", "flops", "bytes_per_s", "gigabytes"),
    [
        (devices.A100, 312e12, 2.039e12, 80),
        (devices.H100, 989e12, 3.35e12, 80),
        (devices.V100, 125e12, 0.9e12, 32),
    ],
)
def test_peaks_are_those_of_the_data_sheets(device, flops, bytes_per_s, gigabytes):
    assert device.flops == flops
    assert device.memory_bytes_per_s == bytes_per_s
    assert device.memory_bytes == gigabytes * 10**9


def test_products_go_at_a_part_of_the_peak_and_all_else_at_the_speed_of_memory():
    device = devices.Device(name="toy", flops=100.0, efficiency=0.5, memory_bytes_per_s=10.0, memory_bytes=1)
    assert device.seconds(50.0, 0.0) == 1.0
    assert device.seconds(0.0, 5.0) == 0.5
    assert device.seconds(50.0, 5.0) == 1.5


def test_a_processor_is_described_in_words_or_numbers():
    device = devices.CPU(flops=1e11, memory_bandwidth="20GB/s", memory="64GB")
    assert (device.flops, device.efficiency) == (1e11, 1.0)
    assert (device.memory_bytes_per_s, device.memory_bytes) == (20e9, 64 * 10**9)


def test_a_device_is_found_by_its_name():
    assert devices.device_of("a100") is devices.A100
    assert devices.device_of(devices.H100) is devices.H100
    assert devices.device_of("CPU") == devices.CPU()
    with unknown("device", "A10", bound=has("A100")):
        devices.device_of("A10")
    with refused("device", 312000000000000.0, bound=has("pl.devices")):
        devices.device_of(312e12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops", 0.0),
        ("efficiency", 0.0),
        ("efficiency", 1.1),
        ("memory_bytes_per_s", -1.0),
        ("memory_bytes", 0),
    ],
)
def test_what_is_impossible_is_refused(field, value):
    with refused(f"Device.{field}", value):
        dataclasses.replace(devices.A100, **{field: value})


def test_it_says_what_it_is():
    assert str(devices.A100) == "A100 at 91% of 312 Tflop/s"
