"""A process that trains: it reads numbers of cases, a line each, and answers each with a line of JSON.

Many cases share it, and so its fork server: that is part of what is tried.
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

__all__ = ["main"]


def main() -> None:
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)
    leftovers = Leftovers()
    with os.fdopen(answers, "w") as out:
        out.write("{}\n")  # all is loaded
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
    """What this returns holds nothing of the run, whose descriptors are then counted."""
    try:
        seen, violations = try_case(case)
    except Exception:
        return "unexpected", False, [traceback.format_exc()]
    return seen.error, seen.fired, violations


if __name__ == "__main__":
    main()
