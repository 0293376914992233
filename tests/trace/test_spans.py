import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, raised, refused

from paceline.errors import FrameError
from paceline.trace import SPAN, Kind, Recorder, Spans
from paceline.trace.spans import NO_MESSAGE, meeting_id, message_id, place_number

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up


def recorded(*tuples: tuple[Any, ...], rank: int = 0, role: str = "worker") -> Spans:
    recorder = Recorder(rank, role)
    for each in tuples:
        recorder.add(*each)
    return recorder.pack()


def test_kinds_have_the_numbers_that_files_hold() -> None:
    assert [kind.label for kind in Kind] == [
        "compute",
        "send",
        "receive",
        "wait",
        "update",
        "cancelled",
        "evaluate",
        "sleep",
        "forward",
        "backward",
        "weights",
    ]
    assert [int(kind) for kind in Kind] == list(range(11))


def test_a_recorder_packs_what_was_recorded_in_order() -> None:
    recorder = Recorder(3, "server", host=1)
    recorder.add(Kind.RECEIVE, 1.0, 2.5, 7, 4096, 12, message_id(7, 3))
    recorder.add(0, 0.25, 1.0, -1, 0, 11)
    spans = recorder.pack()
    assert (spans.rank, spans.role, spans.host, len(spans)) == (3, "server", 1, 2)
    assert spans.array.tolist() == [(2, 1.0, 2.5, 7, 4096, 12, 7 * 2**40 + 3), (0, 0.25, 1.0, -1, 0, 11, -1)]


@given(st.integers(0, 2**22 - 1), st.integers(0, 2**40 - 1), st.integers(0, 2**32 - 1), st.integers(0))
def test_ids_of_messages_and_meetings_fit_a_span_and_are_never_equal(
    source: int, number: int, place: int, visit: int
) -> None:
    assert 0 <= message_id(source, number) < 2**63
    assert -(2**63) <= meeting_id(place, visit) < NO_MESSAGE


def test_two_messages_or_two_meetings_have_different_ids() -> None:
    messages = {message_id(source, number) for source in range(3) for number in range(3)}
    places = [place_number(name) for name in ("gradients-0", "gradients-1", "parameter-board-0")]
    meetings = {meeting_id(place, visit) for place in places for visit in range(3)}
    assert (len(messages), len(meetings)) == (9, 9)
    assert message_id(4, -1) == NO_MESSAGE


def test_packed_spans_cannot_change() -> None:
    spans = recorded((0, 0.0, 1.0, -1, 0, 0))
    with pytest.raises(ValueError, match="read-only"):
        spans.array["kind"] = 1


def test_a_rank_that_did_nothing_has_no_spans() -> None:
    assert len(recorded()) == 0
    assert Spans.from_bytes(recorded().to_bytes()) == recorded()


def test_spans_of_one_kind_keep_their_order() -> None:
    spans = recorded((0, 3, 4, -1, 0, 0), (1, 1, 2, 5, 8, 0), (0, 0, 1, -1, 0, 1))
    assert spans.of(Kind.COMPUTE)["start_s"].tolist() == [3, 0]
    assert len(spans.of(Kind.COMPUTE, Kind.SEND)) == 3


TIMES = st.floats(0, 1e6)
TUPLES = st.builds(
    lambda kind, a, b, *rest: (kind, min(a, b), max(a, b), *rest),
    st.integers(0, 7),
    TIMES,
    TIMES,
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


@unhurried
@given(st.lists(TUPLES, max_size=20), st.integers(0, 2**31 - 1), st.text(max_size=10))
def test_bytes_bring_back_the_same_spans(tuples: list[tuple], rank: int, role: str) -> None:
    spans = recorded(*tuples, rank=rank, role=role)
    back = Spans.from_bytes(spans.to_bytes())
    assert back == spans
    assert back.array.tolist() == tuples
    assert (back.rank, back.role, back.host) == (rank, role, 0)


def test_spans_differ_by_content_rank_and_role() -> None:
    one = recorded((0, 0, 1, -1, 0, 0))
    assert one != recorded((0, 0, 2, -1, 0, 0))
    assert one != recorded((0, 0, 1, -1, 0, 0), rank=1)
    assert one != recorded((0, 0, 1, -1, 0, 0), role="server")
    assert one != "spans"


@unhurried
@given(st.binary(max_size=200))
def test_bytes_that_are_no_spans_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        Spans.from_bytes(data)


@unhurried
@given(st.data())
def test_spans_that_were_cut_padded_or_marked_otherwise_are_refused(data: st.DataObject) -> None:
    good = recorded((0, 0, 1, -1, 0, 0), (1, 1, 2, 3, 4, 5)).to_bytes()
    with pytest.raises(FrameError):
        Spans.from_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(FrameError):
        Spans.from_bytes(good + data.draw(st.binary(min_size=1, max_size=50)))
    with pytest.raises(FrameError):
        Spans.from_bytes(b"XXXX" + good[4:])


@pytest.mark.parametrize(
    ("at", "value"), [(1, struct.pack("<d", 9.0)), (0, b"\x0b"), (9, struct.pack("<d", np.nan))]
)
def test_a_damaged_span_is_refused(at: int, value: bytes) -> None:
    good = bytearray(recorded((0, 0, 1, -1, 0, 0)).to_bytes())
    start = len(good) - SPAN.itemsize + at
    good[start : start + len(value)] = value
    with raised(FrameError, "rank 0"):
        Spans.from_bytes(bytes(good))


@pytest.mark.parametrize(
    "span",
    [
        (0, 2.0, 1.0, -1, 0, 0),
        (11, 0.0, 1.0, -1, 0, 0),
        (0, np.nan, 1.0, -1, 0, 0),
        (0, 0.0, np.inf, -1, 0, 0),
    ],
)
def test_a_span_that_cannot_be_is_refused_with_its_rank(span: tuple) -> None:
    with refused("spans of rank 5"):
        recorded((0, 0, 1, -1, 0, 0), span, rank=5)


def test_an_array_of_another_kind_is_refused() -> None:
    with refused("spans of rank 0", bound=has("SPAN")):
        Spans(np.zeros(3), rank=0)
    with refused("rank", -1, bound=has(0)):
        Spans(np.zeros(3, dtype=SPAN), rank=-1)
