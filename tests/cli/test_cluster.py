"""`--cluster`: a description of machines, simulated or emulated."""

import json
import sys

import pytest
from cli.test_cli import invoke, task_file

MINE = "hosts: 2\nranks_per_host: 2\nlink: {bandwidth: 10Gbps, latency: 50us}\ncard: 10Gbps\ncompute: const:2ms\n"


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return (task_file(tmp_path), "--cluster", str(path), "--steps", "2", "--quiet", "--json")


@pytest.mark.parametrize("how", [("--simulate",), ()])
def test_train_simulates_or_emulates_all_ranks_of_a_description(words, how):
    made = invoke("train", *words, *how)
    assert made.exit_code == 0, made.stderr
    found = json.loads(made.stdout)
    assert len(found["memory"]) == 4
    assert "2 hosts" in found["cluster"]


def test_compare_takes_a_description_by_name_with_a_number_of_hosts(words):
    file = words[0]
    given = ("--strategies", "all-reduce,sync", "--simulate", "--cluster", "four-pcs", "--hosts", "2")
    made = invoke("compare", file, *given, "--steps", "2", "--no-baseline", "--quiet", "--json")
    assert made.exit_code == 0, made.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--bandwidth", "1Gbps"), "--cluster excludes --bandwidth"),
        (("--link", "tcp"), "--cluster excludes --link"),
        (("--workers", "9"), "workers must be a whole number from 1 to 4"),
    ],
)
def test_options_that_contradict_a_description_are_refused(words, more, message):
    result = invoke("train", *words, *more)
    assert result.exit_code == 2
    assert message in result.stderr


def test_hosts_need_a_description(words):
    result = invoke("train", words[0], "--hosts", "2")
    assert result.exit_code == 2
    assert "--hosts needs --cluster" in result.stderr
