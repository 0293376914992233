"""A trace as a picture."""

import pytest
from pictures import marks, read, texts
from refusals import has, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.show import svg
from paceline.trace import Kind, Recorder
from paceline.trace.picture import draw


def picture_of(run, **words):
    return read(draw(run.trace.spans, run.trace.seconds, title="t", **words))


def numbers(picture):
    """The texts that stand in bars: they have the colour of the paper."""
    return [each.text for each in marks(picture, "text", fill=svg.PAPER)]


@pytest.fixture(scope="module")
def run():
    return pl.train(a_task(), "sync", simulated(3, link=pl.Link("1Mbps", "1ms")), steps=2)


def test_every_rank_has_a_lane(run):
    words = set(texts(picture_of(run)))
    assert {"rank 0", "rank 1", "rank 2", "rank 3", "worker", "server"} <= words


def test_every_computation_is_a_bar_with_its_step(run):
    picture = picture_of(run)
    in_the_key = 1
    assert len(marks(picture, "rect", fill=svg.COLOURS[0])) == 3 * 2 + in_the_key
    assert sorted(numbers(picture)) == ["1", "1", "1", "2", "2", "2"]


def test_every_message_is_a_line_between_two_lanes(run):
    assert len(marks(picture_of(run), "circle")) == sum(run.messages_sent)


def test_what_is_after_the_end_is_left_out(run):
    first = read(draw(run.trace.spans, run.trace.seconds / 3, title="t"))
    assert len(marks(first, "rect")) < len(marks(picture_of(run), "rect"))


def test_a_title_cannot_break_the_picture(run):
    assert marks(picture_of(run, words="<script>alert(1)</script>"), "script") == []


def test_a_run_draws_its_trace_to_a_file(run, tmp_path):
    run.trace.draw(tmp_path / "timeline.svg", title="sync")
    assert "rank 0" in texts(read((tmp_path / "timeline.svg").read_text()))


def test_more_ranks_than_a_picture_can_show_are_refused():
    def lane(rank):
        recorder = Recorder(rank, "worker")
        recorder.add(Kind.COMPUTE, 0.0, 1.0, -1, 0, 0)
        return recorder.pack()

    with refused("trace", has(65), bound=has(1, 64)):
        draw([lane(rank) for rank in range(65)], 1.0, title="t")


def numbers_in(spec):
    return set(numbers(picture_of(pl.train(a_task(), spec, simulated(2), steps=2))))


def test_passes_have_the_number_of_their_micro_batch_or_of_their_step_where_there_is_one_alone():
    assert numbers_in("pipeline:microbatches=4") <= {"1", "2", "3", "4"}
    assert "3" in numbers_in("pipeline:microbatches=4")
    assert numbers_in("layers") == {"1", "2"}


def test_under_a_rank_stands_its_role_or_what_is_given(run):
    words = set(texts(picture_of(run, under=["a", "b", "c", "d"])))
    assert {"a", "b", "c", "d"} <= words
    assert "worker" not in words
