"""What strategies survive, in the documentation and in refusals."""

from pathlib import Path

import pytest
from refusals import has, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.strategies import STRATEGIES
from paceline.strategies.registry.survival import survival_rows, survivals

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"
REFUSED = [each.name for each in survivals() if not each.regroups]


def test_the_table_of_the_documentation_is_that_of_the_code():
    assert "\n".join(survival_rows()) in PAGE.read_text()


def test_every_strategy_is_in_the_table_once():
    assert [each.name for each in survivals()] == list(STRATEGIES)


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_cannot_repeat_a_step_is_refused_with_those_that_can(name):
    with refused("min_workers", 2, remedy=has("all-reduce", "fedavg"), bound=has(name)):
        pl.train(a_task(), name, simulated(4, min_workers=2), steps=2)


def test_a_codec_with_residuals_is_refused():
    with refused("min_workers", bound=has("all-reduce:codec=sign")):
        pl.train(a_task(), "all-reduce:codec=sign", simulated(4, min_workers=2), steps=2)


@pytest.mark.parametrize(
    "spec", ["sync:servers=2", "sync:placement=all", "local-sgd:codec=topk-0.1", "pipeline:order=pipedream"]
)
def test_a_variant_whose_ranks_have_parts_of_the_state_is_refused(spec):
    with refused("min_workers", 2, bound=has(spec)):
        pl.train(a_task(), spec, simulated(4, min_workers=2), steps=2)


def test_strategies_that_continue_by_themselves_start_no_worker_again():
    with refused("restart", True, remedy=has("all-reduce")):
        pl.train(a_task(), "fedavg", simulated(4, min_workers=2, restart=True), steps=2)
    with refused("restart", True):
        simulated(4, restart=True)


def test_the_fewest_workers_that_the_strategy_needs_are_accepted():
    run = pl.train(a_task(), "k-sync:k=2", simulated(4, min_workers=2), steps=2)
    assert len(run.generations) == 1


def test_fewer_workers_than_the_strategy_needs_are_refused():
    with refused("min_workers", 2, bound=has("k-sync:k=3", "above 2"), remedy=has("3")):
        pl.train(a_task(), "k-sync:k=3", simulated(4, min_workers=2), steps=2)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [("pipeline:stages=3", "3"), ("hybrid:pipeline=2,tensor=2", "4"), ("tensor:size=4", "4")],
)
def test_fewer_workers_than_one_row_of_a_mesh_are_refused(spec, remedy, tmp_path):
    with refused("min_workers", 2, bound=has(spec), remedy=has(remedy)):
        pl.train(a_task(), spec, simulated(4, min_workers=2), steps=2, checkpoint=tmp_path)


@pytest.mark.parametrize("spec", ["zero:stage=2", "pipeline", "tensor", "hybrid:tensor=2"])
def test_ranks_with_shards_need_a_checkpoint_to_go_back_to(spec):
    with refused("min_workers", 2, bound=has(spec, "checkpoint")):
        pl.train(a_task(), spec, simulated(4, min_workers=2), steps=2)


def test_what_a_run_that_loses_workers_cannot_have_is_refused(tmp_path):
    with refused("min_workers", bound=has("checkpoint")):
        pl.train(a_task(), "local-sgd", simulated(4, min_workers=2), steps=2, checkpoint=tmp_path)
    with refused("min_workers", bound=has("ema")):
        pl.train(a_task(ema=0.9), "all-reduce", simulated(4, min_workers=2), steps=2)
