import random

from refusals import has, raised, refused

from paceline.data.streams import Stream


class Numbers:
    """A stream of `length` numbers per pass. It counts the numbers read."""

    def __init__(self, length=10):
        self.length = length
        self.passes = self.read = 0

    def __iter__(self):
        self.passes += 1
        for number in range(self.length):
            self.read += 1
            yield number


class ByEpoch:
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(self.epoch, 0), (self.epoch, 1), (self.epoch, 2)])


def stream(source, batch_size=4, **words):
    return Stream(source, **({"batch_size": batch_size, "seed": 0} | words))


def test_a_pass_follows_the_one_before_without_a_break():
    assert stream(Numbers(3)).read(range(8)) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_stream_is_told_its_epoch_before_each_pass():
    assert stream(ByEpoch()).read(range(7)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_going_on_reads_no_sample_twice():
    source = Numbers(1000)
    reader = stream(source)
    for step in range(10):
        assert reader.read(range(4 * step + 1, 4 * step + 3)) == [4 * step + 1, 4 * step + 2]
    assert (source.passes, source.read) == (1, 40)


def test_a_new_reader_finds_the_same_samples_at_a_later_position():
    assert stream(Numbers(7)).read(range(40, 44)) == [5, 6, 0, 1]


def test_a_batch_that_lies_behind_is_read_again():
    reader = stream(Numbers(100))
    assert reader.read([90]) == [90]
    assert reader.read([3]) == [3]
    assert reader.read([95]) == [95]


def test_workers_that_are_apart_do_not_make_each_other_begin_anew():
    source = Numbers(10_000)
    reader = stream(source)
    for step in range(100):
        assert reader.read([4 * (step + 50)]) == [4 * (step + 50)]
        assert reader.read([4 * step]) == [4 * step]
    assert source.passes == 2


def test_kept_batches_are_not_read_again():
    source = Numbers(10_000)
    reader = stream(source, kept=16)
    for step in range(15, 100):
        reader.read([4 * step])
        reader.read([4 * (step - 15)])
    assert source.passes == 1


def test_many_places_at_once_are_forgotten_the_oldest_first():
    reader = stream(Numbers(10_000))
    for start in range(20, 0, -1):
        assert reader.read([400 * start]) == [400 * start]
    assert len(reader._cursors) == 8


def test_what_is_drawn_on_the_way_depends_on_the_seed_and_not_on_who_reads_which_part():
    def source():
        while True:
            yield random.random()

    class Source:
        __iter__ = staticmethod(source)

    whole = stream(Source()).read(range(12))
    parts = [stream(Source()).read(range(start, 12, 2)) for start in (0, 1)]
    assert whole == [sample for pair in zip(*parts, strict=True) for sample in pair]
    assert stream(Source(), seed=1).read([0]) != whole[:1]
    assert len(set(whole)) == 12


def test_a_stream_of_nothing_is_refused():
    with refused("data", has(1)):
        stream([]).read([0])


def test_a_stream_that_is_used_up_after_one_pass_is_refused():
    class Once:
        def __init__(self):
            self.samples = iter([1, 2, 3])

        def __iter__(self):
            return self.samples

    reader = stream(Once())
    with refused("data", has(2)) as caught:
        reader.read([0])
    assert "new iterator" in caught.value.remedy


def test_an_error_says_in_which_sample_it_came():
    def source():
        yield from range(6)
        raise OSError("no more")

    class Source:
        __iter__ = staticmethod(source)

    with raised(OSError, "no more") as caught:
        stream(Source()).read([7])
    assert caught.value.__notes__ == ["in sample 6 of the stream"]
