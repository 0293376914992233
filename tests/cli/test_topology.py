import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from processes import PATIENCE_S
from refusals import has
from typer.testing import CliRunner

from paceline.cli import app


def invoke(*words):
    return CliRunner().invoke(app, ["topology", *words])


def table(text):
    rows = (line.split("  ", 1) for line in text.splitlines())
    return {row[0].strip(): row[-1].strip() for row in rows}


def test_a_ring_of_16_peers_is_told_in_figures():
    result = invoke("ring", "--workers", "16")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("ring, 16 peers")
    assert table(result.stdout) | {
        "degree": "2",
        "edges": "both ways",
        "diameter": "8",
        "spectral gap": "0.050747",
        "steps to consensus": "133, until the distance is a thousandth",
        "bytes a step, busiest peer": "2 MiB",
        "bytes a step, all peers": "32 MiB",
    } == table(result.stdout)


def test_the_size_of_the_parameters_sets_the_traffic():
    told = table(invoke("star", "--workers", "5", "--bytes", "10K").stdout)
    assert told["bytes a step, busiest peer"] == "40 KiB"
    assert told["bytes a step, all peers"] == "80 KiB"


def test_a_topology_that_changes_tells_its_period():
    told = table(invoke("one-peer-exponential", "--workers", "8").stdout)
    assert told["degree"] == "1 a step, changing"
    assert told["spectral gap"] == "1 a period of 3 steps"
    assert told["edges"] == "one way"


def test_json_is_one_object_and_nothing_else():
    told = json.loads(invoke("complete", "--workers", "4", "--bytes", "100", "--json").stdout)
    assert told["spectral_gap"] == pytest.approx(1)
    assert (told["diameter"], told["steps_to_consensus"]) == (1, 1)
    assert (told["bytes_per_step_and_peer"], told["bytes_per_step"]) == (300, 1200)


def test_a_plot_is_an_svg(tmp_path):
    picture = tmp_path / "torus.svg"
    result = invoke("torus", "--workers", "16", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert "spectral gap" in result.stdout
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_files_of_edges_and_of_weights_know_their_peers(tmp_path):
    edges, weights = tmp_path / "edges.txt", tmp_path / "weights.csv"
    edges.write_text("0 1\n1 2\n2 0\n")
    np.savetxt(weights, [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]], delimiter=",")
    assert table(invoke(str(edges)).stdout)["degree"] == "2"
    assert table(invoke(str(weights)).stdout)["spectral gap"] == "0.75"
    assert table(invoke("ring", "--workers", "3", "--weights", str(weights)).stdout)["spectral gap"] == "0.75"


def test_a_seed_draws_the_random_graph():
    def told(*words):
        return invoke("random-regular:degree=3", "--workers", "20", *words).stdout

    assert told("--seed", "1") == told("--seed", "1") != told("--seed", "2")


def test_a_graph_in_pieces_is_shown_if_allowed(tmp_path):
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n2 3\n")
    assert invoke(str(edges)).exit_code == 2
    told = table(invoke(str(edges), "--allow-disconnected").stdout)
    assert told["steps to consensus"] == "never"
    assert told["diameter"] == "none: some peers cannot reach each other"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("rign", "--workers", "4"), has("'ring'")),
        (("ring",), has("peers", "--workers")),
        (("ring", "--workers", "0"), has("peers", "1", "0")),
        (("hypercube", "--workers", "6"), has("6", "4", "8")),
        (("star", "--workers", "6", "--weights", "uniform"), has("weights", "column 0", "1")),
        (("ring", "--workers", "6", "--weights", "w.npy"), has("w.npy")),
        (("ring", "--workers", "6", "--bytes", "much"), has("--bytes", "much")),
        (("ring", "--workers", "6", "--plot", "ring.png"), has("--plot", "ring.png")),
        (("ring", "--workers", "6", "--plot", "no/such/ring.svg"), has("--plot", "no/such/ring.svg")),
        (("ring", "--workers", "9000", "--plot", "ring.svg"), has("2,000")),
    ],
)
def test_wrong_words_are_refused_with_exit_code_2(words, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert facts == result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_torch_and_scipy_are_not_needed(tmp_path):
    program = (
        "import sys\nsys.modules['torch'] = sys.modules['scipy'] = None\nfrom paceline.cli import app\n"
        f"app(['topology', 'random-regular', '--workers', '20', '--plot', {str(tmp_path / 'x.svg')!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
