"""Values that the planner tries next."""

from paceline.strategies import parse
from paceline.strategies.registry.search_space import neighbours
from paceline.strategies.shared.search_space import Scope


def test_a_mesh_that_is_too_large_for_the_workers_has_smaller_neighbours():
    scope = Scope(workers=2, per_host=2, batch_size=32, shares_memory=False)
    found = list(neighbours(parse("hybrid:pipeline=4"), scope))
    assert {each.pipeline for each in found} == {1, 2}


def test_a_complete_graph_is_tried_with_few_workers_only():
    """It equals all-reduce, and its messages grow with the square of the workers."""
    for workers, is_tried in ((64, True), (65, False)):
        found = neighbours(parse("decentralized"), Scope(workers=workers, per_host=8, batch_size=512))
        assert ("complete" in {each.topology for each in found}) == is_tried
