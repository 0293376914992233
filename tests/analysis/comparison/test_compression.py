"""A comparison says whether a codec paid off."""

import pytest
from strategies.local_cases import labelled
from tasks import simulated

import paceline as pl
from paceline.analysis.comparison.compression import break_even
from paceline.codecs.speed import Speed, speed_of


def compared(bandwidth, *strategies):
    cluster = simulated(2, link=pl.Link(bandwidth=bandwidth), compute=pl.times.Constant("1ms"))
    return pl.compare(labelled(), strategies, cluster, steps=4)


def about(comparison, name):
    return [
        text
        for text in comparison.summary
        if (text.startswith(f"{name} ") and "pay off" in text) or "paid off" in text
    ]


def test_a_codec_pays_off_on_a_very_slow_link_only():
    plain, coded = "all-reduce:algorithm=ring", "all-reduce:codec=bf16"
    (slow,) = about(compared("1kbps", plain, coded), coded)
    (fast,) = about(compared("1Tbps", plain, coded), coded)
    assert f"{coded} paid off" in slow
    assert f"{coded} did not pay off" in fast
    assert "below about" in slow
    assert "below about" in fast


def test_without_the_plain_strategy_nothing_is_said():
    assert not about(compared("1Mbps", "single", "all-reduce:codec=bf16"), "all-reduce:codec=bf16")


def test_a_codec_that_sends_more_saves_no_bytes():
    (said,) = about(compared("1Mbps", "all-reduce", "all-reduce:codec=topk-1"), "all-reduce:codec=topk-1")
    assert "saves no bytes" in said


def test_the_break_even_bandwidth_is_the_bytes_saved_in_the_time_of_coding():
    limit, coding_s = break_even("bf16", 2e6, 4e6, 4)
    assert limit * coding_s == pytest.approx(2e6)
    assert break_even("bf16", 4e6, 2e6, 4)[0] == 0


@pytest.mark.parametrize("codec", ["bf16", "int8", "sign", "topk-0.01", "powersgd-2"])
def test_coding_time_is_proportional_to_the_bytes(codec):
    speed = Speed(1e-9, 2e-9, 1.0)
    assert speed.seconds(2e6, codec, 4) == pytest.approx(2 * speed.seconds(1e6, codec, 4))
    assert speed_of(codec, 5000).encode_s > 0


def test_gathered_codes_are_encoded_once_and_decoded_from_all_ranks():
    assert Speed(1.0, 0.1, 1.0).seconds(3.0, "sign", 4) == pytest.approx(1.0 + 5 * 0.1)
