import dataclasses
import json
from xml.etree import ElementTree

import pytest
from chosen_runs import entry, run_of, with_figures

import paceline as pl
from paceline.analysis.comparison.entry import Entry


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


def test_runs_of_different_tasks_have_no_winner(found):
    single, sync, *_ = found.entries
    run = sync.runs[0]
    larger = dataclasses.replace(run, fingerprint=run.fingerprint | {"samples": "96"})
    mixed = pl.Comparison(entries=(single, entry(larger, name="sync")))
    assert mixed.winner is None
    assert mixed.differences == ["samples 24 (single) and 96 (sync)"]
    assert mixed.summary[0] == (
        "No winner: these runs trained different tasks: samples 24 (single) and 96 (sync)."
    )
    assert [row.speed_up for row in mixed.table] == [None, None]
    assert mixed.as_dict()["differences"] == mixed.differences
    assert not any("wins" in sentence for sentence in mixed.summary[1:])


def test_the_lower_loss_comes_nearest():
    runs = [
        with_figures(run_of(name), metrics=metrics, target=0.1, better="lower")
        for name, metrics in {"sync": (0.9, 0.5), "async": (0.9, 0.3)}.items()
    ]
    found = pl.Comparison(entries=tuple(entry(run) for run in runs))
    assert found.winner is None
    assert found.summary[0] == "No strategy reaches 0.1; async comes closest, with 0.3000."


def test_the_first_to_be_low_enough_wins():
    runs = [
        with_figures(run_of(name), metrics=metrics, target=0.5, better="lower")
        for name, metrics in {"sync": (0.9, 0.5), "async": (0.4, 0.3)}.items()
    ]
    found = pl.Comparison(entries=tuple(entry(run) for run in runs))
    assert found.winner == "async"
    assert [row.seconds_to_target for row in found.table] == [2.0, 1.0]


def test_failed_entries_are_listed(found):
    assert [each.name for each in found.failed] == ["hogwild"]


def test_as_text_it_is_its_table_and_its_summary(found):
    assert str(found).splitlines() == [*str(found.table).splitlines(), "", *found.summary]


def test_in_a_list_it_is_one_line(found):
    assert repr([found]) == "[<Comparison of single, sync, two, hogwild: sync wins>]"
    nobody = pl.Comparison(entries=(Entry(name="sync", error="why"),))
    assert repr(nobody) == "<Comparison of sync: no winner>"


def test_a_notebook_shows_table_curves_and_sentences(found):
    root = ElementTree.fromstring(f"<div>{found._repr_html_()}</div>")
    cells = [cell.text or "" for cell in root.iter("td")]
    assert cells == [text for row in found.table.cells for text in row]
    assert [each.text for each in root.iter("li")] == found.summary
    names = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert names[-3:] == ["single", "sync", "two"]
    assert found.table._repr_html_() in found._repr_html_()


def test_a_notebook_shows_the_loss_where_there_is_no_metric():
    runs = [with_figures(run_of(name), metrics=(None, None)) for name in ("sync", "async")]
    shown = pl.Comparison(entries=tuple(entry(run) for run in runs))._repr_html_()
    assert "<title>loss</title>" in shown


def test_a_comparison_of_failures_has_no_curve():
    assert "<svg" not in pl.Comparison(entries=(Entry(name="sync", error="why"),))._repr_html_()


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
