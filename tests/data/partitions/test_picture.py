from xml.etree import ElementTree

import numpy as np
import pytest
from refusals import has, refused

from paceline.data.partitions import Partition
from paceline.data.partitions.facts import facts_of
from paceline.data.partitions.picture import check_drawable, draw

SVG = "{http://www.w3.org/2000/svg}"


def drawn(labels=10, clients=12, samples=1200, **changes):
    targets = np.arange(samples) % labels
    facts = facts_of(Partition(**({"kind": "dirichlet", "alpha": 0.5} | changes)), targets, clients)
    return facts, ElementTree.fromstring(draw(facts, "numbers: a title"))


def segments(root):
    return {group.find(f"{SVG}title").text: group for group in root.iter(f"{SVG}g")}


def test_there_is_a_segment_for_each_label_that_a_client_has():
    facts, root = drawn()
    expected = {
        f"client {client}: label {label}, {facts.counts[client, label]} samples"
        for client, label in zip(*np.nonzero(facts.counts), strict=True)
    }
    assert set(segments(root)) == expected


def test_segments_are_as_long_as_they_have_samples():
    _, root = drawn()
    scales = [
        float(group.find(f"{SVG}rect").get("width")) / int(words.split()[-2])
        for words, group in segments(root).items()
        if int(words.split()[-2]) >= 20  # of small ones the gap between two is a good part
    ]
    assert len(scales) > 10
    assert max(scales) / min(scales) < 1.1


def test_labels_differ_without_their_colours_where_there_is_room():
    _, root = drawn(clients=4)
    wide = [group for group in segments(root).values() if float(group.find(f"{SVG}rect").get("width")) > 30]
    assert len(wide) > 8
    assert all(group.find(f"{SVG}text") is not None for group in wide)


def test_more_labels_than_colours_are_told_apart_by_stripes():
    _, root = drawn(labels=32, clients=3)
    key = root.findall(f"{SVG}rect")[1:]  # after the paper; segments are in groups
    looks = {(rect.get("y"), rect.get("fill")) for rect in key}
    rows = {y: tuple(fill for place, fill in sorted(looks) if place == y) for y, _ in looks}
    assert len(rows) == len(set(rows.values())) == 32


def test_everything_lies_on_the_paper():
    for clients in (1, 30, 1000):
        _, root = drawn(clients=clients, samples=20_000, alpha=5.0, allow_empty=True)
        _, _, width, height = map(float, root.get("viewBox").split())
        for text in root.iter(f"{SVG}text"):
            assert 0 < float(text.get("x")) < width
            assert 0 < float(text.get("y")) < height
        for rect in root.iter(f"{SVG}rect"):
            assert float(rect.get("x", 0)) + float(rect.get("width")) <= width
            assert float(rect.get("y", 0)) + float(rect.get("height")) <= height


def test_data_without_labels_and_clients_without_data_can_be_drawn():
    facts = facts_of(Partition(allow_empty=True), np.zeros((3, 2)), 5)
    texts = [text.text for text in ElementTree.fromstring(draw(facts, "x")).iter(f"{SVG}text")]
    assert any("2 without any" in text for text in texts)
    assert not any("distance" in text for text in texts)


@pytest.mark.parametrize(("clients", "labels"), [(1001, 2), (2, 33)])
def test_what_nobody_could_read_is_refused(clients, labels):
    with refused("plot", bound=has("1,000", 32)):
        check_drawable(clients, labels)
