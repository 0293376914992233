import pytest

from paceline.show.tables import NOTHING, is_numeric, plain_table

HEADER = ("strategy", "seconds", "note")
ROWS = [("single", "1.50", "[alone]"), ("map-reduce", "12.25", "")]


def test_a_plain_table_aligns_names_to_the_left_and_numbers_to_the_right():
    assert plain_table(HEADER, ROWS).splitlines() == [
        "strategy    seconds  note",
        "single         1.50  [alone]",
        "map-reduce    12.25",
    ]


def test_a_table_without_rows_is_its_header():
    assert plain_table(HEADER, []) == "strategy  seconds  note"


@pytest.mark.parametrize(
    ("texts", "numeric"),
    [
        (["1", "20"], True),
        (["1", NOTHING], True),
        (["1", ""], True),
        (["1", "not reached"], True),
        (["1", "not reached", "failed"], False),
        ([NOTHING, ""], False),
        ([], False),
    ],
)
def test_a_column_is_of_numbers_if_most_of_its_texts_are(texts, numeric):
    assert is_numeric(1, [("name", text) for text in texts]) is numeric


def test_the_first_column_holds_names_even_if_they_look_like_numbers():
    assert not is_numeric(0, [("1", "2")])
