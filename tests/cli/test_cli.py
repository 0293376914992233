import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from outside import install
from processes import PATIENCE_S
from refusals import has
from typer.testing import CliRunner

from paceline.cli import app
from paceline.strategies.registry import table

TASK = """
import torch
from torch import nn
from paceline.task.task import Task

x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))

def loss(output, target):
    {in_the_loss}
    return nn.functional.mse_loss(output, target)

def closeness(outputs, targets):
    return -float((outputs - targets).abs().mean())

task = Task(model=lambda: nn.Linear(3, 1), data=(x, x.sum(1, keepdim=True)), loss=loss,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=16,
            test=(x, x.sum(1, keepdim=True)), metric=closeness, target=-10.0)
"""


def task_file(folder, in_the_loss="pass"):
    path = folder / "small.py"
    path.write_text(TASK.format(in_the_loss=in_the_loss))
    return str(path)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return task_file(tmp_path)


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def command(*words):
    return [sys.executable, "-c", "from paceline.cli import main; main()", *words]


def imported_by(*words):
    """The modules that a command has imported when it ends."""
    program = (
        "import sys\nfrom paceline.cli import app\n"
        f"try: app({list(words)!r})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stderr.split()


# Words


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("train", "--help"),
        ("compare", "--help"),
        ("report", "--help"),
        ("strategies", "--help"),
        ("--version",),
    ],
)
def test_help_and_version_do_not_import_torch(words):
    modules = imported_by(*words)
    assert "paceline.cli.train" in modules
    assert "torch" not in modules
    assert "numpy" not in modules
    assert "rich.progress" not in modules
    assert not [
        name for name in modules if name.startswith(("paceline.report", "paceline.analysis.comparison"))
    ]


def test_words_that_do_not_fit_are_refused_before_torch_is_imported():
    assert "torch" not in imported_by("train", "some.py", "--simulate", "--deadline", "60s")


def test_the_version_is_that_of_the_package():
    assert invoke("--version").stdout.startswith("paceline 0.")


def test_help_names_every_command():
    text = invoke("--help").stdout
    assert all(name in text for name in ("train", "compare", "report", "strategies"))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--steps", "3", "--epochs", "2"), has("--steps", "--epochs")),
        (("--compute", "quick"), has("--compute", "quick")),
        (("--bandwidth", "wide"), has("bandwidth", "wide")),
        (("--latency", "soon"), has("latency", "soon")),
        (("--simulate", "--deadline", "60s"), has("--deadline")),
        (("--simulate", "--device", "cuda"), has("--device")),
        (("--device", "nonsense"), has("device", "nonsense")),
        (("--out", __file__), has("--out")),
        (("--out", __file__ + "/run"), has("--out")),
        (("--out", "/proc/run"), has("--out")),
        (("--deadline", "soon"), has("--deadline", "soon")),
        (("--simulate", "--bandwidth", "wide"), has("bandwidth", "wide")),
        (("--simulate", "--compute", "quick"), has("--compute")),
        (("--slow", "3"), has("slow")),
        (("--fault", "kill:rank=9,at=1s"), has("faults", "9")),
        (("--fault", "explode:rank=1"), has("fault", "explode")),
        (("--delay", "often"), has("delay", "often")),
        (("--workers", "0"), has("workers")),
        (("--workers", "-2"), has("workers")),
        (("--steps", "0"), has("steps")),
        (("--strategy", "all-reduse"), has("'all-reduce'")),
        (("--strategy", "all-reduce:algoritm=ring"), has("'algorithm'")),
    ],
)
def test_a_word_that_cannot_be_right_is_refused_with_exit_code_2(small, words, facts):
    result = invoke("train", small, *words)
    assert facts == result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize("words", [("train",), ("trian",), ("train", "x.py", "--wrokers", "3")])
def test_a_word_that_is_not_known_has_exit_code_2(words):
    assert invoke(*words).exit_code == 2


def test_a_missing_file_has_exit_code_2():
    result = invoke("train", "nowhere.py")
    assert result.exit_code == 2
    assert "must be a Python file that exists, but got 'nowhere.py'" in result.stderr


def test_a_broken_file_shows_the_users_traceback_alone(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_anywhere\n")
    result = invoke("train", str(path))
    assert result.exit_code == 2
    assert f'File "{path}", line 1' in result.stderr
    assert "No module named 'no_such_module_anywhere'" in result.stderr
    assert f"{os.sep}paceline{os.sep}" not in result.stderr


def test_an_argument_refused_in_the_file_is_told_with_its_line(tmp_path):
    path = tmp_path / "refused.py"
    path.write_text(
        "from paceline.task.task import Task\ntask = Task(model=3, data=1, loss=1, optimizer=1, batch_size=1)\n"
    )
    result = invoke("train", str(path))
    assert result.exit_code == 2
    assert f"in {path}, line 2" in result.stderr


# Runs


def test_a_run_prints_its_result_to_stdout_and_its_progress_to_stderr(small):
    result = invoke("train", small, "--workers", "2", "--steps", "6")
    assert result.exit_code == 0, result.stderr
    figures, _, diagnosis = result.stdout.partition("\n\n")
    names = [line.split()[0] for line in figures.splitlines()]
    assert names == ["strategy", "seconds", "steps", "loss", "closeness", "target", "time"]
    assert diagnosis.strip()  # its causes depend on the machine
    assert "reached after" in result.stdout
    assert "step " in result.stderr


def test_quiet_shows_no_progress(small):
    result = invoke("train", small, "--workers", "1", "--steps", "2", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")


def test_json_is_one_object_and_nothing_else_on_stdout(small):
    result = invoke("train", small, "--workers", "2", "--epochs", "1", "--strategy", "map-reduce", "--json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["steps"] == 4
    assert figures["reached_target"] is True
    assert figures["diagnosis"]


def test_one_worker_alone_is_not_diagnosed(small):
    result = invoke("train", small, "--workers", "1", "--steps", "2", "--quiet")
    assert "\n\n" not in result.stdout


def test_a_slow_rank_is_told_after_the_run(small):
    words = ["--simulate", "--compute", "constant:seconds=10ms", "--slow", "1:4x", "--steps", "20"]
    result = invoke("train", small, "--workers", "4", *words)
    assert "Rank 1 is the slowest to compute: 40 ms a gradient, 4.0 times" in result.stdout
    assert "a step would take" in result.stdout


def test_a_fault_of_the_command_line_ends_a_run_that_needs_the_rank(small):
    words = ["--simulate", "--compute", "constant:seconds=10ms", "--fault", "kill:rank=1,at=55ms"]
    result = invoke("train", small, "--workers", "4", "--steps", "20", *words)
    assert result.exit_code == 1
    assert has("rank 1", "step 5") == result.stderr


def test_local_workers_take_times_and_links_of_machines_that_are_not_there(small):
    words = ["--compute", "const:5ms", "--bandwidth", "1Gbps", "--latency", "50us", "--slow", "1:0.5x"]
    result = invoke("train", small, "--workers", "2", *words, "--steps", "3", "--json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["cluster"].startswith("2 local workers (emulated: compute 5 ms, link 1 Gbit/s")
    assert figures["seconds"] >= 3 * 0.005


def test_a_simulated_run_takes_links_times_and_stragglers(small):
    words = ["--simulate", "--bandwidth", "1Gbps", "--latency", "50us", "--compute", "constant:seconds=10ms"]
    words += [
        "--slow",
        "1:4x",
        "--slow",
        "2:2x",
        "--delay",
        "3=constant:seconds=5ms",
        "--steps",
        "3",
        "--json",
    ]
    result = invoke("train", small, "--workers", "4", *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["step_seconds"] == pytest.approx(0.040, rel=0.1)


def test_a_real_run_takes_links_and_emulates_them(small):
    words = ["--bandwidth", "1Gbps", "--latency", "10ms", "--steps", "3", "--json"]
    result = invoke("train", small, "--workers", "2", *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["step_seconds"] >= 0.020  # two messages in sequence


@pytest.mark.parametrize("world", [(), ("--simulate",)])
def test_a_run_has_as_many_threads_a_rank_as_it_is_told(small, world):
    result = invoke("train", small, "--workers", "2", "--threads", "3", *world, "--steps", "2", "--json")
    assert json.loads(result.stdout)["cluster"].endswith("3 threads a rank")


@pytest.mark.parametrize("command", [("train",), ("compare", "--strategies", "single")])
def test_a_number_of_threads_out_of_range_is_refused(small, command):
    result = invoke(*command[:1], small, *command[1:], "--threads", "0", "--steps", "2")
    assert result.exit_code == 2
    assert "threads must be None or a whole number from 1 to 1024, but got 0" in result.stderr


@pytest.mark.parametrize("encryption", [(), ("--encrypt",)])
def test_a_real_run_talks_over_tcp_if_told_to(small, encryption):
    result = invoke("train", small, "--workers", "2", "--link", "tcp", *encryption, "--steps", "3", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--link", "wires"), has("link", "pl.Link", "shared-memory", "tcp", "wires")),
        (("--link", "tcp", "--simulate"), has("--link", "tcp")),
        (("--link", "tcp", "--latency", "1ms"), has("--link", "--latency", "tcp")),
        (("--encrypt",), has("--encrypt", "--link")),
        (("--link", "shared-memory", "--encrypt"), has("--encrypt", "--link")),
    ],
)
def test_links_that_do_not_go_together_are_refused(small, words, facts):
    result = invoke("train", small, "--workers", "2", *words, "--steps", "3")
    assert result.exit_code == 2
    assert facts == result.stderr


def test_a_bench_can_time_tcp():
    words = ("--workers", "2", "--algorithms", "ring", "-b", "4K", "-e", "4K", "--link", "tcp", "--json")
    result = invoke("bench", "all-reduce", *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["where"] == "2 local workers, over TCP"


def test_a_bench_of_real_workers_takes_no_links():
    result = invoke("bench", "all-reduce", "--bandwidth", "1Gbps")
    assert result.exit_code == 2
    assert "--bandwidth needs --simulate, but got '1Gbps'; add --simulate" in result.stderr


def test_out_saves_history_trace_and_model(small, tmp_path):
    folder = tmp_path / "runs" / "one"
    result = invoke("train", small, "--workers", "2", "--steps", "3", "--out", str(folder))
    assert result.exit_code == 0, result.stderr
    assert len((folder / "history.jsonl").read_text().splitlines()) == 3
    assert {"trace.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


def test_stop_at_target_ends_the_run_early(small):
    result = invoke("train", small, "--workers", "1", "--epochs", "50", "--stop-at-target", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["steps"] < 200


def test_an_error_in_the_users_loss_has_exit_code_1_and_names_the_rank(tmp_path):
    result = invoke(
        "train", task_file(tmp_path, "raise KeyError('my loss')"), "--workers", "2", "--steps", "3"
    )
    assert result.exit_code == 1
    assert "KeyError: 'my loss'" in result.stderr
    assert "rank" in result.stderr
    assert result.stdout == ""


def test_a_loss_that_is_not_finite_has_exit_code_1(tmp_path):
    bad = task_file(tmp_path, "output = output * float('nan')")
    result = invoke("train", bad, "--workers", "2", "--steps", "3")
    assert result.exit_code == 1
    assert "the loss is nan on rank" in result.stderr


def test_a_run_that_cannot_be_saved_says_so(small, tmp_path, monkeypatch):
    from paceline.runs.run import Run

    def full(self, directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save", full)
    result = invoke("train", small, "--workers", "1", "--steps", "1", "--out", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "could not be saved" in result.stderr
    assert "No space left on device" in result.stderr


def test_ctrl_c_ends_the_run_with_exit_code_130_and_no_traceback(small):
    words = command("train", small, "--workers", "2", "--steps", "100000000")
    # A process group of its own, as a shell gives it: Ctrl-C reaches the workers too.
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stderr.readline().startswith("step ")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert out == ""


INTERRUPT_THAT_PYTHON_IGNORES = """
import signal

class Thing:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

Thing()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--steps", "1", "--simulate"),
        ("compare", "--strategies", "sync", "--steps", "1", "--simulate"),
        ("check",),
    ],
    ids=lambda words: words[0],
)
def test_ctrl_c_in_the_file_of_a_task_is_not_lost_where_exceptions_are_ignored(small, words, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_type))
    with open(small, "a") as file:
        file.write(INTERRUPT_THAT_PYTHON_IGNORES)
    name, *options = words
    result = invoke(name, small, "--workers", "1", *options)
    assert result.exit_code == 130, result.output
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert result.stdout == ""
    assert ignored == []


def test_ctrl_c_in_a_benchmark_is_not_lost_where_exceptions_are_ignored(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_type))
    monkeypatch.setattr(
        "paceline.cli.bench._check_plot", lambda plot, spec: exec(INTERRUPT_THAT_PYTHON_IGNORES, {})
    )
    result = invoke("bench", "all-reduce", "--workers", "2", "--simulate", "-b", "1KB", "-e", "1KB")
    assert result.exit_code == 130, result.output
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert ignored == []


@pytest.mark.slow
def test_a_terminal_gets_a_bar_with_loss_and_samples_a_second(small):
    driver, terminal = pty.openpty()
    words = command("train", small, "--simulate", "--workers", "2", "--steps", "200")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal, text=True, env=WIDE) as process:
        os.close(terminal)
        shown = read_all(driver)
        assert process.wait(timeout=PATIENCE_S) == 0, shown
    assert "/200" in shown
    assert "loss " in shown
    assert "samples/s" in shown


WIDE = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}


def read_all(descriptor):
    """Return the output of a program on its terminal until its end."""
    parts, end_s = [], time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        try:
            parts.append(os.read(descriptor, 65536))
        except OSError:  # how Linux reports that the other side is closed
            break
    os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


# Strategies


def test_strategies_are_listed_by_family_a_line_each():
    result = invoke("strategies")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines)
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted([*table.STRATEGIES, *table.ALIASES])
    assert lines[0] == "one worker:"
    assert "…" not in result.stdout, "a summary of the tree fits"


@pytest.mark.parametrize("name", table.STRATEGIES)
def test_a_strategy_has_a_page_that_tells_all(name):
    result = invoke("strategies", name)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == name
    assert {"When:", "Cost:", "Paper:"} <= {*lines}
    for field in dataclasses.fields(table.STRATEGIES[name]):
        assert any(line.strip().startswith(f"{field.name}=") for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_the_page_of_another_systems_word_is_that_of_ours():
    ours, theirs = (invoke("strategies", name).stdout.splitlines() for name in ("all-reduce", "ddp"))
    assert theirs[0] == "all-reduce (also called ddp)"
    assert theirs[1:] == ours[1:]


def test_a_page_is_found_by_the_words_of_a_command():
    assert invoke("strategies", "k-sync:k=3").stdout == invoke("strategies", "k-sync").stdout


def test_an_unknown_strategy_has_no_page():
    result = invoke("strategies", "k-sink")
    assert result.exit_code == 2
    assert "k-sync" in result.stderr


def test_strategies_as_json_name_parameters_and_defaults():
    listed = {one["name"]: one for one in json.loads(invoke("strategies", "--json").stdout)}
    algorithm = next(p for p in listed["all-reduce"]["parameters"] if p["name"] == "algorithm")
    assert algorithm["default"] == "auto"
    assert algorithm["help"]
    assert all(one["summary"] for one in listed.values())


def test_a_missing_strategy_is_listed_with_the_reason(tmp_path, monkeypatch):
    install(tmp_path, {"mine": "nowhere_at_all:Mine"})
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("strategies")
    assert result.exit_code == 0
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("  mine "))
    assert "Missing: strategy mine of the package sample must be importable" in line
    listed = {one["name"]: one for one in json.loads(invoke("strategies", "--json").stdout)}
    assert "No module named 'nowhere_at_all'" in listed["mine"]["summary"]


REGISTERS = """
from dataclasses import dataclass
import paceline as pl
from paceline.strategies.all_reduce import AllReduce

@dataclass(frozen=True, kw_only=True)
class Mine(AllReduce):
    algorithm: str = "ring"

pl.register("mine-in-a-file", Mine)
"""


@pytest.mark.parametrize(
    "words", [("train", "--strategy", "mine-in-a-file"), ("compare", "--strategies", "mine-in-a-file")]
)
def test_a_task_file_may_register_a_strategy(small, words, monkeypatch):
    monkeypatch.setattr(table, "STRATEGIES", dict(table.STRATEGIES))
    with open(small, "a") as file:
        file.write(REGISTERS)
    simulated = ("--simulate", "--compute", "constant:seconds=10ms")
    result = invoke(words[0], small, *words[1:], "--steps", "2", *simulated)
    assert result.exit_code == 0, result.stderr
    assert "mine-in-a-file" in result.stdout


def test_names_of_other_systems_are_listed_with_what_they_are_there():
    listed = invoke("strategies").stdout
    assert "tensor, as in Megatron-LM." in listed
    assert "pipeline, as in GPipe." in listed
    assert "all-reduce, called DistributedDataParallel in PyTorch." in listed
    assert not any(
        line.endswith((" .", "called .")) or "  in " in line.strip() for line in listed.splitlines()
    )
