from paceline.cli.table import plain_table, print_table

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


def test_what_is_no_terminal_gets_the_plain_table(capsys):
    print_table(HEADER, ROWS)
    assert capsys.readouterr().out == plain_table(HEADER, ROWS) + "\n"


def test_a_terminal_gets_a_drawn_table_with_its_brackets_kept(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(HEADER, ROWS)
    drawn = capsys.readouterr().out
    assert "─" in drawn
    assert "[alone]" in drawn
