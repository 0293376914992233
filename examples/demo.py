"""What `make demo` runs: the digits, trained with several strategies on 4 local workers.

python examples/demo.py
"""

import sys
from pathlib import Path

import paceline as pl
from paceline.cli.table import print_table

STRATEGIES = ("single", "map-reduce", "all-reduce:algorithm=ring", "all-reduce")
WORKERS = 4
EPOCHS = 10

HEADER = ("strategy", "seconds", "steps", "test accuracy", "computing", "communicating", "idle")


def row(strategy: str, run: pl.Run) -> tuple[str, ...]:
    shares = run.trace.summary()
    return (
        strategy,
        f"{run.seconds:.2f}",
        f"{run.steps}",
        f"{run.metric:.2%}",
        f"{shares.compute_share:.0%}",
        f"{shares.communicate_share:.0%}",
        f"{shares.idle_share:.0%}",
    )


def main() -> None:
    task = pl.load_task(Path(__file__).with_name("digits.py"))
    print(f"Handwritten digits, {EPOCHS} epochs, {WORKERS} local workers.\n")
    rows = []
    for strategy in STRATEGIES:
        print(f"training with {strategy}", file=sys.stderr)
        run = pl.train(task, strategy, pl.Local(workers=WORKERS), epochs=EPOCHS)
        rows.append(row(strategy, run))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
