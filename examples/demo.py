"""What `make demo` runs: handwritten digits on 4 local workers, one of which is four times as slow.

Several strategies, one after another, from the same start; then the table, who wins and why, and a page with timelines.

python examples/demo.py
"""

from pathlib import Path

import paceline as pl
from paceline.cli.progress import shown_comparison
from paceline.cli.table import print_table

STRATEGIES = "all-reduce,sync,k-sync:k=3,k-async:k=2,decentralized:topology=ring"
PAGE = Path("runs/demo/report.html")


def main() -> None:
    task = pl.load_task(Path(__file__).with_name("digits.py"))
    cluster = pl.Local(workers=4, slow={3: 4.0})
    print(f"Handwritten digits on {cluster}.\n")
    with shown_comparison(quiet=False) as progress:
        found = pl.compare(task, STRATEGIES, cluster, epochs=8, progress=progress)
    print_table(found.table.header, found.table.cells)
    print("", *found.summary, sep="\n")
    found.report(PAGE, title=f"Handwritten digits on {cluster}", command="make demo")
    print(f"\nThe page: {PAGE}")


if __name__ == "__main__":
    main()
