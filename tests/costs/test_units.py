import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused

from paceline.costs.units import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50us", 50e-6),
        ("50µs", 50e-6),
        ("50μs", 50e-6),
        ("2ms", 2e-3),
        ("1.5s", 1.5),
        (" 1.5 s ", 1.5),
        ("3min", 180.0),
        ("2h", 7200.0),
        ("7ns", 7e-9),
        ("0.25", 0.25),
        ("1e-3", 1e-3),
        ("0", 0.0),
        (0.01, 0.01),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.int64(4), 4.0),
    ],
)
def test_seconds_are_read_exactly(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10Gbps", 1.25e9),
        ("10gbps", 1.25e9),
        ("10Gbit/s", 1.25e9),
        ("100Mbit/s", 12.5e6),
        ("100Mbps", 12.5e6),
        ("100 Mb/s", 12.5e6),
        ("1GB/s", 1e9),
        ("1GBps", 1e9),
        ("1GiB/s", 2**30),
        ("8bps", 1.0),
        ("1.5e9", 1.5e9),
        ("inf", math.inf),
        (math.inf, math.inf),
        (5_000_000, 5e6),
    ],
)
def test_b_means_bit_and_capital_b_means_byte(text: str | float, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4K", 4096),
        ("4k", 4096),
        ("64M", 64 * 2**20),
        ("1G", 2**30),
        ("1GiB", 2**30),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5K", 1536),
        ("512", 512),
        ("512B", 512),
        (0, 0),
        (2**70 + 1, 2**70 + 1),
    ],
)
def test_a_plain_k_is_1024_and_kb_is_1000(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "value",
    ["", "ms", "5 parsecs", "1 2s", "-1ms", -1, math.nan, math.inf, "inf", "1e400s", 10**400, True, None, []],
)
def test_what_is_no_time_is_refused_with_the_forms_that_are(value: object) -> None:
    with refused("latency", remedy=has("50us")) as caught:
        parse_seconds(value, "latency")  # type: ignore[arg-type]
    assert caught.value.value is value


@pytest.mark.parametrize(
    "value",
    ["10G", "10 GB", "fast", 0, "0Gbps", -1, "-1Gbps", math.nan, -math.inf, "1e-400Gbps", False, None],
)
def test_what_is_no_bandwidth_is_refused_with_the_forms_that_are(value: object) -> None:
    with refused("bandwidth", remedy=has("10Gbps")):
        parse_bandwidth(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["4Q", -1, "-4K", 1.5, "0.3K", math.inf, math.nan, True, None, "9" * 100])
def test_what_is_no_whole_number_of_bytes_is_refused(value: object) -> None:
    with refused("size", remedy=has("4K")):
        parse_bytes(value, "size")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-5, "50 µs"),
        (0.0123456, "12.3 ms"),
        (0.9999, "1 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.9, "1 h 0 min"),
        (7260, "2 h 1 min"),
        (-0.5, "-500 ms"),
        (math.inf, "inf s"),
    ],
)
def test_seconds_are_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**26, "64 MiB"), (2**20 - 1, "1 MiB")],
)
def test_bytes_are_told_in_powers_of_1024(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (1.25e9, "10 Gbit/s"),
        (12.5e6, "100 Mbit/s"),
        (124_990_000, "1 Gbit/s"),
        (1, "8 bit/s"),
        (math.inf, "unlimited"),
    ],
)
def test_bandwidth_is_told_in_bits(bytes_per_s: float, text: str) -> None:
    assert format_bandwidth(bytes_per_s) == text


@unhurried
@given(st.floats(min_value=1e-9, max_value=59.9))
def test_reading_back_what_was_told_loses_less_than_a_percent(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=6e-3)


@unhurried
@given(st.floats(min_value=1, max_value=1e15))
def test_no_quantity_is_told_with_an_exponent(value: float) -> None:
    assert "e+" not in format_seconds(value) + format_bytes(value) + format_bandwidth(min(value, 1e14))


@unhurried
@given(st.integers(min_value=0, max_value=10**18))
def test_a_number_and_its_digits_mean_the_same_bytes(count: int) -> None:
    assert parse_bytes(count) == parse_bytes(str(count)) == count
