"""MapReduce twice: as ordinary Spark jobs, and as Paceline's strategy `map-reduce`. Both train the same regression.

Both give the same weights. The table shows the seconds of an iteration, and how much of them is computation. The rest
is the cost of the framework. Spark starts a job in each iteration: it schedules tasks, sends the code and the
parameters to Python processes, and collects pickled gradients. The workers of `map-reduce` stay in their loop, and pass
tensors through shared memory.

    pip install 'paceline[spark]'     # and Java 17
    python examples/spark_map_reduce.py
"""

import paceline as pl
from paceline.trace import Kind

WORKERS, STEPS = 2, 20


def compute_share(run: pl.Run) -> float:
    """Return the share of an iteration in which the busiest rank computes."""
    spans = [each.of(Kind.COMPUTE) for each in run.trace.spans]
    return max(float((each["end_s"] - each["start_s"]).sum()) for each in spans) / run.seconds


def main(steps: int = STEPS) -> pl.Comparison:
    task = pl.load_task("examples/linear_regression.py")
    cluster = pl.Local(workers=WORKERS)
    found = pl.compare(task, ["map-reduce"], cluster, against="spark", steps=steps, baseline=False)
    runs = {entry.name: entry.runs[0] for entry in found.entries}
    print(f"{'':12}{'ms an iteration':>18}{'computing':>12}{'final loss':>14}")
    for name, run in runs.items():
        share = compute_share(run)
        print(f"{name:12}{1000 * run.step_seconds:18.2f}{share:12.0%}{run.history[-1].loss:14.8f}")
    ratio = runs["spark"].step_seconds / runs["map-reduce"].step_seconds
    print(f"An iteration as a Spark job takes {ratio:.0f} times as long, for the same weights.")
    return found


if __name__ == "__main__":
    main()
