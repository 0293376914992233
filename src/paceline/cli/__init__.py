"""The command line: parses options and prints results. Torch is imported only by the commands that need it."""

from __future__ import annotations

import typer

from paceline.cli import (
    bench,
    calibrate,
    check,
    compare,
    cut,
    explain,
    export,
    new,
    partition,
    plan,
    report,
    run,
    runs,
    strategies,
    topology,
    train,
    what_if,
)
from paceline.cli.optional_values import CommandWithRunners, ScriptCommandWithRunners
from paceline.cli.options import Version

__all__ = ["app", "main"]

app = typer.Typer(
    name="paceline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("new")(new.new)
app.command("check")(check.check)
app.command("train", cls=CommandWithRunners)(train.train)
app.command("run", cls=ScriptCommandWithRunners, context_settings={"allow_interspersed_args": False})(run.run)
app.command("compare", cls=CommandWithRunners)(compare.compare)
app.command("plan")(plan.plan)
app.command("report")(report.report)
app.command("runs")(runs.runs)
app.command("what-if")(what_if.what_if)
app.command("export")(export.export)
app.command("calibrate")(calibrate.calibrate)
app.command("strategies")(strategies.strategies)
app.command("bench")(bench.bench)
app.command("topology")(topology.topology)
app.command("partition")(partition.partition)
app.command("cut")(cut.cut)
app.command("explain")(explain.explain)


@app.callback()
def paceline(version: Version = False) -> None:
    """Train one PyTorch model on many workers, with any parallel-training strategy."""


def main() -> None:
    """Run the console script."""
    app()
