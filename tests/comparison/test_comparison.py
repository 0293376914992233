import json

import pytest
from chosen_runs import entry, run_of, with_figures

import paceline as pl
from paceline.comparison.entry import Entry


@pytest.fixture(scope="module")
def found():
    metrics = (0.5, 0.98)
    single = with_figures(run_of("single", workers=1), metrics=metrics, target=0.97, step_s=2.0)
    sync = with_figures(run_of("sync"), metrics=metrics, target=0.97)
    missing = with_figures(run_of("async"), metrics=(0.1,), target=0.97)
    failed = Entry(name="hogwild", error="no luck")
    return pl.Comparison(entries=(entry(single), entry(sync), entry(sync, missing, name="two"), failed))


def test_the_table_is_a_sequence_of_rows_and_prints_as_a_table(found):
    assert len(found.table) == 4
    assert found.table[1].name == "sync"
    assert [row.name for row in found.table[2:]] == ["two", "hogwild"]
    lines = str(found.table).splitlines()
    assert lines[0].split()[0] == "strategy"
    assert lines[2].split()[0] == "sync"
    assert repr(found.table) == str(found.table)


def test_the_winner_is_the_first_to_reach_the_target(found):
    assert found.winner == "sync"
    assert found.summary[0].startswith("sync wins")


def test_failed_entries_are_listed(found):
    assert [each.name for each in found.failed] == ["hogwild"]


def test_as_text_it_is_its_table_and_its_summary(found):
    assert str(found).splitlines() == [*str(found.table).splitlines(), "", *found.summary]


def test_figures_are_ready_for_json(found):
    figures = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert figures["winner"] == "sync"
    assert figures["entries"][1]["seconds_to_target"] == 2.0
    assert figures["entries"][2]["spread"] == [2.0, None]
    assert figures["entries"][3]["error"] == "no luck"
    assert figures["summary"] == found.summary


def test_a_report_is_one_page_with_the_tables_texts(found, tmp_path):
    path = tmp_path / "pages" / "report.html"
    found.report(path, title="Mine", command="paceline compare this")
    page = path.read_text()
    assert "<title>Mine" in page
    assert "paceline compare this" in page
    assert all(text in page for text in found.table.cells[1])


def test_saving_writes_every_run(found, tmp_path):
    found.save(tmp_path / "deep" / "saved")
    assert len(list((tmp_path / "deep" / "saved").glob("*/*/run.json"))) == 4
