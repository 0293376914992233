"""`paceline plan`."""

import json

import pytest
from cli.test_cli import invoke

GPT = "gpt:layers=2,hidden=64,heads=4,sequence=16,vocabulary=128"
WORDS = ("--cluster", "dgx-a100", "--hosts", "1", "--batch-size", "16", "--workers", "2", "--quiet")


def test_a_gpt_on_a_described_cluster_is_planned():
    done = invoke("plan", GPT, *WORDS, "--strategies", "all-reduce,tensor", "--explain", "0,1")
    assert done.exit_code == 0, done.stderr
    assert "all-reduce" in done.stdout
    assert "not tried" in done.stdout
    assert "compute, of a batch" in done.stdout


def test_json_has_the_entries():
    done = invoke("plan", GPT, *WORDS, "--strategies", "all-reduce", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["goal"] == "step"
    assert found["best"]["prediction"]["fits"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ((GPT, "--cluster", "dgx-a100"), ("batch_size",)),
        ((GPT + ",hiden=3", *WORDS), ("hiden",)),
        (("gpt:layers=2", *WORDS), ("gpt:hidden",)),
        ((GPT.replace("2,", "two,", 1), *WORDS), ("gpt:layers", "two")),
        ((GPT + ",dtype=fp8", *WORDS), ("gpt:dtype", "fp8")),
        ((GPT, *WORDS, "--workers", "4-2"), ("workers",)),
        ((GPT, *WORDS, "--workers", "few"), ("--workers", "few")),
        ((GPT, *WORDS, "--explain", "1"), ("--explain",)),
        ((GPT, *WORDS, "--goal", "time to target"), ("target",)),
        ((GPT, "--cluster", "dgx-a1000", "--batch-size", "2"), ("dgx-a1000",)),
        ((GPT, "--cluster", "local", "--hosts", "2", "--batch-size", "2"), ("--hosts",)),
        ((GPT, *WORDS, "--calibration", "x.json"), ("--calibration", "--cluster local")),
        ((GPT, "--cluster", "local", "--batch-size", "2", "--calibration", "x.json"), ("x.json",)),
    ],
)
def test_what_is_wrong_is_refused(words, facts):
    done = invoke("plan", *words)
    assert done.exit_code == 2
    assert all(fact in done.stderr for fact in facts), done.stderr
