import errno
import json
import os
import pty
import subprocess
import sys

import pytest
from pictures import read, texts
from processes import PATIENCE_S
from refusals import has, raised
from typer.testing import CliRunner

from paceline.cli import app, bench
from paceline.cli.failures import exit_codes
from paceline.errors import RunError

SMALL = ("--workers", "2", "-b", "400", "-e", "40000", "-f", "100", "--repeat", "2")
SIMULATED = ("--simulate", "--bandwidth", "1Gbps", "--latency", "50us")


def invoke(*words):
    return CliRunner().invoke(app, ["bench", *words])


def imported_by(*words):
    program = (
        "import sys\nfrom paceline.cli import app\n"
        f"try: app({list(words)!r})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stderr.split()


def table(text):
    """The rows of the first table, split at columns."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "algorithm" in line)
    end = next((i for i, line in enumerate(lines[start:], start) if not line), len(lines))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[start:end]]


@pytest.fixture(scope="module")
def tiny():
    return invoke("all-reduce", *SMALL, "--algorithms", "ring,tree", "--against", "gloo")


# Runs


def test_a_run_prints_size_time_and_bandwidths_of_each_algorithm(tiny):
    assert tiny.exit_code == 0, tiny.stderr
    header, *rows = table(tiny.stdout)
    assert header[:3] == ["size", "algorithm", "time"]
    assert header[3].startswith("algbw")
    assert header[4].startswith("busbw")
    assert header[5] == "gloo/this"
    assert [row[:2] for row in rows] == [
        [size, name] for size in ("400 B", "39.06 KiB") for name in ("ring", "tree", "gloo")
    ]


def test_a_run_names_one_winner_for_each_size(tiny):
    _, *rows = table(tiny.stdout)
    for size in ("400 B", "39.06 KiB"):
        assert sum(row[0] == size and row[-1] == "fastest" for row in rows) == 1
    assert "\nfastest  " in tiny.stdout


def test_a_run_prints_the_fitted_link_and_the_machine(tiny):
    assert "\nlink     latency " in tiny.stdout
    assert "bandwidth " in tiny.stdout
    assert "\nmachine  " in tiny.stdout


def test_progress_is_a_line_a_size_on_stderr(tiny):
    assert tiny.stderr.splitlines() == ["size 1/2  400 B", "size 2/2  39.06 KiB"]


def test_json_is_one_object_and_nothing_else_on_stdout():
    result = invoke(
        "all-reduce", *SMALL, "--algorithms", "ring,native", "--against", "gloo", "--json", "--quiet"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    figures = json.loads(result.stdout)
    assert [row["algorithm"] for row in figures["rows"]] == ["ring", "native"] * 2
    assert figures["peer"] == "native"
    assert set(figures["ratios"]) == {"ring"}
    assert figures["fit"]["bytes_per_s"] is None or figures["fit"]["bytes_per_s"] > 0


def test_a_barrier_has_neither_size_nor_bandwidth():
    result = invoke("barrier", "--workers", "2", "--repeat", "2", "--against", "gloo", "--quiet")
    assert result.exit_code == 0, result.stderr
    header, *rows = table(result.stdout)
    assert header == ["algorithm", "time", "gloo/this"]
    assert [row[0] for row in rows] == ["dissemination", "gloo"]


def test_a_terminal_gets_a_bar():
    driver, terminal = pty.openpty()
    words = ["bench", "all-reduce", *SIMULATED, "--workers", "2"]
    command = [sys.executable, "-c", "from paceline.cli import main; main()", *words]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        process.communicate(timeout=PATIENCE_S)
    shown = os.read(driver, 65536).decode(errors="replace")
    os.close(driver)
    assert process.returncode == 0
    assert "7/8" in shown
    assert "64 MiB" in shown


def test_a_wrong_result_is_shown_and_has_exit_code_1(capsys):
    import typer

    from paceline.bench.report import Report, make_row
    from paceline.bench.spec import Spec

    spec = Spec(pattern="all-reduce", workers=2, begin_bytes=4, end_bytes=4, algorithms=("ring",))
    rows = (make_row(spec, 1, "ring", [1.0], wrong=3),)
    machine = {"cores": 2, "load": 0.0, "torch": "2"}
    report = Report(spec=spec, where="here", rows=rows, mistake="element 5 is wrong", machine=machine)
    with pytest.raises(typer.Exit) as ended, exit_codes():
        bench._show(report, None, as_json=False)
    shown = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "WRONG in 3 calls" in shown.out
    assert "fastest  none: no result was correct" in shown.out
    assert shown.err.splitlines()[0] == "error: element 5 is wrong"


# Simulated


def test_a_simulation_gives_the_predicted_table():
    result = invoke("all-reduce", *SIMULATED, "--workers", "4", "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["simulated"] is True
    assert figures["link"] == {"latency_s": 50e-6, "bytes_per_s": 125e6}
    for row in figures["rows"]:
        if row["algorithm"] == "ring":
            expected_s = 6 * 50e-6 + 2 * row["size_bytes"] * 3 / 4 / 125e6
            assert row["seconds"] == pytest.approx(expected_s, rel=0.01)


def test_a_simulation_says_what_it_left_out():
    result = invoke("all-reduce", *SIMULATED, "-e", "4K", "--quiet")
    assert "left out  shared (shared memory sends no messages); native" in result.stdout


def test_over_tcp_algorithms_that_share_memory_are_left_out():
    result = invoke("all-reduce", "--link", "tcp", "--workers", "2", "-e", "4K", "--repeat", "1", "--json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert "ring" in {row["algorithm"] for row in figures["rows"]}
    assert set(figures["left_out"]) == {"shared"}


def test_over_tcp_an_algorithm_that_shares_memory_is_refused_if_it_is_named():
    result = invoke("all-reduce", "--link", "tcp", "--algorithms", "ring,shared")
    assert result.exit_code == 2
    assert "--algorithms" in result.stderr


def test_a_plot_is_written_as_svg(tmp_path):
    path = tmp_path / "plot.svg"
    result = invoke("all-reduce", *SIMULATED, "--plot", str(path), "--quiet")
    assert result.exit_code == 0, result.stderr
    assert texts(read(path.read_text()))


def test_a_plot_that_cannot_be_saved_in_the_end_says_so(tmp_path):
    from paceline.bench.predict import predict
    from paceline.bench.spec import Spec
    from paceline.clusters.simulated.simulated import Simulated

    report = predict(Spec(pattern="broadcast", workers=2, simulated=True), Simulated(workers=2))
    with raised(RunError, "plot", os.strerror(errno.ENOENT)):
        bench._save_plot(report, tmp_path / "gone" / "plot.svg")


# Words


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("all-reduse",), has("'all-reduce'")),
        (("all-reduce", "--algorithms", "ring,shard"), has("'shared'")),
        (("all-reduce", "--algorithms", "ring,"), has("--algorithms", "ring,")),
        (("barrier", "--algorithms", "ring"), has("dissemination")),
        (("all-reduce", "-b", "4M", "-e", "1M"), has("-b", "-e", "1048576")),
        (("all-reduce", "-b", "much"), has("-b", "much")),
        (("all-reduce", "-f", "1"), has("-f", "1", "1.0")),
        (("all-reduce", "-f", "0.5"), has("-f", "1", "0.5")),
        (("all-reduce", "--workers", "0"), has("workers", "1", "0")),
        (("all-reduce", "--workers", "1000"), has("workers", "1", "255")),
        (("all-reduce", "--repeat", "0"), has("--repeat", "1")),
        (("all-reduce", "--dtype", "int32"), has("'int64'")),
        (("all-reduce", "--against", "mpi"), has("--against", "gloo")),
        (("all-reduce", "-b", "1T", "-e", "1T"), has("memory", "4 workers", "1 TiB")),
        (("all-reduce", "--bandwidth", "1Gbps"), has("--bandwidth", "--simulate")),
        (("all-reduce", "--simulate", "--algorithms", "native"), has("native", "--simulate")),
        (("all-reduce", "--simulate", "--against", "gloo"), has("--against", "gloo")),
        (("all-reduce", "--plot", "/nowhere/plot.svg"), has("--plot")),
        (("all-reduce", "--plot", "/proc/plot.svg"), has("--plot")),
        (("all-reduce", "--plot", "/"), has("--plot")),
        (("all-reduce", "--plot", f"{__file__}/plot.svg"), has("--plot")),
        (("barrier", "--plot", "plot.svg"), has("--plot")),
        (("all-reduce", "--plot", "plot.svg", "--workers", "1"), has("--workers", "2")),
    ],
)
def test_a_word_that_cannot_be_right_is_refused_with_exit_code_2(words, facts):
    result = invoke(*words)
    assert facts == result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.exit_code == 2


def test_help_does_not_import_torch_and_names_the_patterns():
    modules = imported_by("bench", "--help")
    assert "paceline.cli.bench" in modules
    assert "torch" not in modules
    assert "numpy" not in modules
    assert "reduce-scatter" in invoke("--help").stdout


def test_words_that_do_not_fit_are_refused_before_torch_is_imported():
    assert "torch" not in imported_by("bench", "all-reduce", "-b", "4M", "-e", "1M")
    assert "torch" not in imported_by("bench", "all-reduce", "--plot", "/nowhere/plot.svg")
