from paceline.cli.table import print_table
from paceline.show.tables import plain_table

HEADER = ("strategy", "seconds", "note")
ROWS = [("single", "1.50", "[alone]"), ("map-reduce", "12.25", "")]


def test_what_is_no_terminal_gets_the_plain_table(capsys):
    print_table(HEADER, ROWS)
    assert capsys.readouterr().out == plain_table(HEADER, ROWS) + "\n"


def test_a_terminal_gets_a_drawn_table_with_its_brackets_kept(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(HEADER, ROWS)
    drawn = capsys.readouterr().out
    assert "─" in drawn
    assert "[alone]" in drawn
