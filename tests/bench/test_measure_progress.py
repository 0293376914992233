import os

from paceline.bench.measure import heard


def test_each_byte_written_to_the_path_is_heard_in_order():
    places = []
    with heard(places.append) as path:
        pipe = os.open(path, os.O_WRONLY)
        for _ in range(3):
            os.write(pipe, b".")
        os.close(pipe)
    assert places == [0, 1, 2]


def test_nobody_listening_means_no_path():
    with heard(None) as path:
        assert path is None


def test_nothing_stays_open(file_descriptors):
    before = file_descriptors()
    with heard(print):
        pass
    assert file_descriptors() == before
