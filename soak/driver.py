"""The training process: it reads the number of a case from each line, and answers with a line of JSON.

Many cases share this process and its fork server. This is part of the test.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from soak.cases import Case, make_case
from soak.leftovers import Leftovers
from soak.trial import try_case


def main() -> None:
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)
    leftovers = Leftovers()
    with os.fdopen(answers, "w") as out:
        out.write("{}\n")  # all modules are loaded
        out.flush()
        for line in sys.stdin:
            out.write(json.dumps(_answer(make_case(int(line)), leftovers)) + "\n")
            out.flush()


def _answer(case: Case, leftovers: Leftovers) -> dict[str, object]:
    began_s = time.monotonic()
    error, fired, violations = _try(case)
    took_s = time.monotonic() - began_s
    violations += leftovers.look(case.cluster)
    return {"seed": case.seed, "seconds": took_s, "error": error, "fired": fired, "violations": violations}


def _try(case: Case) -> tuple[str, bool, list[str]]:
    """Run a case. The result holds no reference to the run, so that open descriptors can be counted afterwards."""
    try:
        seen, violations = try_case(case)
    except Exception:
        return "unexpected", False, [traceback.format_exc()]
    return seen.error, seen.fired, violations


if __name__ == "__main__":
    main()
