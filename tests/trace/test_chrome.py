import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.trace import Kind, Recorder, Spans
from paceline.trace.chrome import chrome_json

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up

Row = tuple[Any, ...]


def spans(rank: int, *rows: Row, role: str = "worker", host: int = 0) -> Spans:
    recorder = Recorder(rank, role, host)
    for row in rows:
        recorder.add(*row)
    return recorder.pack()


def events(*each: Spans, seconds: float = 10.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome_json(each, seconds))["traceEvents"]
    return found


def slices(*each: Spans) -> list[dict[str, Any]]:
    return [event for event in events(*each) if event["ph"] == "X"]


def track_names(*each: Spans) -> dict[tuple[int, int], str]:
    named = [event for event in events(*each) if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def test_a_span_is_a_slice_in_microseconds() -> None:
    (event,) = slices(spans(3, (Kind.RECEIVE, 0.5, 0.75, 1, 4096, 12)))
    assert (event["name"], event["ts"], event["dur"]) == ("receive", 500_000, 250_000)
    assert event["args"] == {"peer": 1, "bytes": 4096, "step": 12}


def test_a_process_is_a_rank_with_its_role_host_and_place() -> None:
    found = events(spans(0), spans(3, role='"odd" role', host=2))
    args = {(e["pid"], e["name"]): e["args"] for e in found}
    assert args[1, "process_name"] == {"name": "rank 0 (worker)"}
    assert args[4, "process_name"] == {"name": 'rank 3 ("odd" role)'}
    assert args[4, "process_labels"] == {"labels": "host 2"}
    assert args[4, "process_sort_index"] == {"sort_index": 3}


def test_each_lane_has_its_track() -> None:
    one = spans(0, *((kind, kind, kind + 1, -1, 0, 0) for kind in Kind))
    names = track_names(one)
    where = {event["name"]: names[event["pid"], event["tid"]] for event in slices(one)}
    assert where == {
        "compute": "compute",
        "forward": "compute",
        "backward": "compute",
        "weights": "compute",
        "update": "compute",
        "cancelled": "compute",
        "evaluate": "compute",
        "sleep": "compute",
        "receive": "communicate",
        "wait": "communicate",
        "send": "send",
    }


def test_overlapping_spans_of_a_lane_take_further_tracks() -> None:
    one = spans(
        0,
        *((Kind.RECEIVE, start, start + 2, 1, 8, 0) for start in (0, 1, 2, 3, 3)),
        (Kind.SEND, 0, 9, 1, 8, 0),
    )
    names = track_names(one)
    assert list(names.values()) == ["communicate", "communicate 2", "communicate 3", "send"]
    tracks = [names[event["pid"], event["tid"]] for event in slices(one) if event["name"] == "receive"]
    assert tracks == ["communicate", "communicate 2", "communicate", "communicate 2", "communicate 3"]


def test_a_flow_joins_the_send_and_the_receive_of_each_message() -> None:
    found = events(
        spans(0, (Kind.SEND, 1, 2, 1, 8, 0, 7), (Kind.SEND, 2, 3, 1, 8, 0, 8)),
        spans(
            1,
            (Kind.WAIT, 0, 2, 0, 0, 0, 8),
            (Kind.RECEIVE, 2, 4, 0, 8, 0, 8),
            (Kind.RECEIVE, 5, 6, -1, 8, 0, -9),
        ),
    )
    sent, received = (next(event for event in found if event["ph"] == phase) for phase in "sf")
    assert sum(event["ph"] in "sf" for event in found) == 2, "nobody received message 7, and -9 is a meeting"
    assert sent["id"] == received["id"] == "8"
    bars = {(event["pid"], event["tid"], event["ts"]): event["name"] for event in found if event["ph"] == "X"}
    assert [bars[end["pid"], end["tid"], end["ts"]] for end in (sent, received)] == ["send", "receive"]


def test_no_process_is_0_and_no_track_passes_for_a_main_thread() -> None:
    one = [spans(rank, (0, 0, 1, -1, 0, 0), (1, 0, 1, -1, 0, 0)) for rank in range(6)]
    found = slices(*one)
    assert min(event["pid"] for event in found) > 0
    assert not {event["pid"] for event in found} & {event["tid"] for event in found}


TIMES = (
    st.floats(0, 5000)
    | st.integers(0, 40).map(lambda n: n / 10)
    | st.integers(0, 10**6).map(lambda n: n * 1e-9)
)
ROWS = st.lists(
    st.builds(lambda kind, a, b: (kind, min(a, b), max(a, b), -1, 0, 0), st.integers(0, 7), TIMES, TIMES),
    max_size=40,
)


def assert_apart(rows: list[Row]) -> None:
    tracks = defaultdict(list)
    for event in slices(spans(0, *rows)):
        # Perfetto reads nanoseconds and drops the fraction.
        tracks[event["tid"]].append(
            (int(event["ts"] * 1000), int(event["dur"] * 1000), event["ts"], event["dur"])
        )
    assert sum(map(len, tracks.values())) == len(rows)
    for track in tracks.values():
        for (ns, ns_long, us, us_long), (next_ns, _, next_us, _) in pairwise(sorted(track)):
            assert ns + ns_long <= next_ns
            assert us + us_long <= next_us


@unhurried
@given(ROWS)
def test_no_two_slices_of_a_track_overlap(rows: list[Row]) -> None:
    assert_apart(rows)


@unhurried
@given(st.lists(TIMES, min_size=2, max_size=40))
def test_neighbours_on_a_track_do_not_overlap_however_a_reader_rounds(times: list[float]) -> None:
    rows = [(0, start, end, -1, 0, 0) for start, end in pairwise(sorted(times))]
    assert_apart(rows)
    assert list(track_names(spans(0, *rows)).values()) == ["compute"]


@unhurried
@given(ROWS)
def test_a_lane_has_as_many_tracks_as_it_has_spans_at_a_time(rows: list[Row]) -> None:
    sends = [(1, *row[1:]) for row in rows if row[2] - row[1] > 1e-6]
    one = spans(0, *sends)
    most = max((sum(s <= start < e for _, s, e, *_ in sends) for _, start, *_ in sends), default=0)
    assert len(track_names(one)) <= most  # rounding may part two that overlap by less than a tick


@unhurried
@given(ROWS, st.randoms())
def test_the_order_of_recording_does_not_show(rows: list[Row], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert chrome_json([spans(0, *rows)], 1.0) == chrome_json([spans(0, *shuffled)], 1.0)


def test_no_time_is_negative() -> None:
    (event,) = slices(spans(0, (0, -1.0, 1.0, -1, 0, 0)))
    assert (event["ts"], event["dur"]) == (0, 1_000_000)


def test_a_trace_of_nobody_is_valid_json() -> None:
    assert events() == []
