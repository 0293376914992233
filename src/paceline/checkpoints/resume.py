"""Choice of the checkpoint that a run resumes from. It must be a checkpoint of the same task."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.checkpoints.checkpoint import Checkpoint
from paceline.checkpoints.description import RunDescription
from paceline.checkpoints.store import Store
from paceline.errors import ConfigurationError
from paceline.task.fingerprint import changes

_log = logging.getLogger("paceline")

_LISTED = 3


def find_checkpoint(store: Store, resume: bool | str, run: RunDescription) -> Checkpoint | None:
    """Return the checkpoint to resume; None to start a new run. `resume` is the argument of `pl.train`."""
    if not resume:
        _refuse_used_folder(store)
        return None
    found = store.newest(good=resume == "newest-good")
    if found is None:
        if resume == "must":
            remedy = "give a folder with checkpoints, or omit resume"
            raise ConfigurationError("checkpoint", "must hold a checkpoint", str(store.folder), remedy)
        _log.warning("no checkpoint in %s: the run starts from the beginning", store.folder)
        return None
    _check_same_run(found, run)
    _check_ranks(found, run)
    _name_skipped(store, found)
    _log.info("the run resumes after step %d (%s)", found.step, found.folder)
    return found


def _name_skipped(store: Store, found: Checkpoint) -> None:
    """Log newer checkpoints that are not used: damaged ones, and those that a kill left incomplete."""
    damaged = [f"step-{step:08} is damaged" for step in store.steps() if step > found.step]
    unfinished = [f"{path.name} was not finished" for path in store.unfinished(found.step)]
    if damaged or unfinished:
        text = "newer checkpoints in %s are not used: %s; the run resumes after step %d (%s)"
        _log.warning(text, store.folder, "; ".join([*damaged, *unfinished]), found.step, found.folder.name)


def _refuse_used_folder(store: Store) -> None:
    there = store.steps()
    if there:
        whole = {each.step: each for each in store.checkpoints()}
        run = whole[there[-1]].run_name if there[-1] in whole else "a damaged checkpoint of a run"
        held = f"{store.folder}, which holds {run} up to step {there[-1]}"
        remedy = "resume=True (--resume) resumes it; or use another folder"
        raise ConfigurationError("checkpoint", "must be a folder without checkpoints", held, remedy)


def _check_same_run(found: Checkpoint, run: RunDescription) -> None:
    there = found.facts.get("task")
    differ = ["it does not describe its task"]
    if isinstance(there, dict):
        differ = changes(there, run.facts["task"]) + _other_layers(found, run.facts) + _other_pace(found, run)
    if differ:
        raise found.of_another_task(differ)


def _other_layers(found: Checkpoint, facts: Mapping[str, Any]) -> list[str]:
    before, now = found.facts.get("layers", facts["layers"]), facts["layers"]
    differ = changes(before, now, what="layer ")
    if before.keys() != now.keys():
        differ.append(f"the number of layers was {len(before)} and is {len(now)} now")
    return differ[:_LISTED]


def _other_pace(found: Checkpoint, run: RunDescription) -> list[str]:
    """Return a changed `schedule_every`.

    It may differ with another strategy, because an epoch may then have another number of updates.
    """
    facts = run.facts
    if facts["strategy"] != found.facts["strategy"] or list(run.roles) != found.facts["roles"]:
        return []
    before = found.facts.get("schedule_every", facts["schedule_every"])
    return changes({"schedule_every": before}, {"schedule_every": facts["schedule_every"]})


def _check_ranks(found: Checkpoint, run: RunDescription) -> None:
    """Check that the ranks may change: every role must be replicated, so that one rank has the complete state."""
    facts, before = run.facts, tuple(found.facts["roles"])
    if facts["strategy"] == found.facts["strategy"] and run.roles == before:
        return
    for strategy, roles, replicates in (
        (found.facts["strategy"], before, found.facts["replicates"]),
        (facts["strategy"], run.roles, facts["replicates"]),
    ):
        alone = sorted({*roles} - {*replicates})
        if len(roles) > 1 and alone:
            was, now = (
                f"{words} with {_ranks(each)}"
                for words, each in ((found.facts["strategy"], before), (facts["strategy"], run.roles))
            )
            bound = f"must be {was}, as before: in {strategy} every {alone[0]} has its own state"
            remedy = (
                "changing the workers or the strategy is possible only if all workers hold the same state"
            )
            raise ConfigurationError("strategy", bound, now, remedy)


def _ranks(roles: Sequence[str]) -> str:
    servers = sum(role == "server" for role in roles)
    workers = len(roles) - servers
    words = f"{workers} worker{'s' if workers > 1 else ''}"
    return f"{words} and {servers} server{'s' if servers > 1 else ''}" if servers else words
