import dataclasses

from paceline.runs.record import Record


def test_records_of_a_table_equal_records_of_its_rows():
    rows = [
        (1, 0.5, 2.0, None, 8, 100, {}, 0.5),
        (2, 1.5, 1.0, 0.9, 16, 200, {"consensus": 3.0}, 1.0),
    ]
    names = [each.name for each in dataclasses.fields(Record)]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    assert Record.of_columns(**columns) == [Record(*row) for row in rows]
    assert Record.of_columns(**dict.fromkeys(names, ())) == []
