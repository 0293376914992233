import json

import numpy as np
import pytest

from paceline.data.partitions import Partition
from paceline.data.partitions.facts import facts_of

TARGETS = np.array([7, 7, 7, 9, 9, 9, 9, 9])


def facts(*parts, targets=TARGETS, **changes):
    return facts_of(Partition(kind=lambda *_: parts, **changes), targets, len(parts))


def test_samples_are_counted_by_client_and_label():
    counted = facts([0, 1, 3], [2, 4, 5, 6, 7])
    assert counted.labels == (7, 9)
    assert counted.counts.tolist() == [[2, 1], [1, 4]]
    assert counted.sizes.tolist() == [3, 5]
    assert counted.clients == 2


def test_the_distance_is_half_the_difference_of_the_labels_shares():
    counted = facts([0, 1, 3], [2, 4, 5, 6, 7])
    assert counted.distances == pytest.approx([2 / 3 - 3 / 8, 3 / 8 - 1 / 5])
    assert counted.skew == pytest.approx(np.mean(counted.distances))


def test_alike_clients_have_no_skew_and_a_client_of_one_rare_label_is_nearly_as_far_as_can_be():
    alike = facts([0, 3], [1, 4], targets=np.array([0, 0, 9, 1, 1, 9])[:5])
    assert alike.skew == pytest.approx(0.0)
    apart = facts([0], list(range(1, 100)), targets=np.array([0] + [1] * 99))
    assert apart.distances[0] == pytest.approx(0.99)


def test_a_client_without_samples_has_no_distance_and_counts_for_none():
    counted = facts([0, 1, 3], [], [2, 4, 5, 6, 7], allow_empty=True)
    assert counted.empty == [1]
    assert np.isnan(counted.distances[1])
    assert counted.skew == pytest.approx(facts([0, 1, 3], [2, 4, 5, 6, 7]).skew)


def test_targets_that_are_no_labels_are_counted_all_together():
    counted = facts_of(Partition(), np.zeros((10, 2)), 3)
    assert counted.labels == ()
    assert counted.counts.tolist() == [[4], [3], [3]]
    assert counted.skew == 0.0


def test_the_figures_are_ready_for_json():
    figures = json.loads(json.dumps(facts([0, 1], [], [2, 3], allow_empty=True).as_dict()))
    assert figures["counts"] == [[2, 0], [0, 0], [1, 1]]
    assert figures["empty"] == [1]
    assert figures["distances"][1] is None
    assert figures["samples"] == 4
