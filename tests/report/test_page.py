import re
from html import unescape

import pytest
from refusals import has, refused
from report.cases import entry, many_spans, trained

from paceline.report import write_page
from paceline.report.page import page

SIX_MB = 6_000_000


def test_the_page_is_one_file_that_refers_to_no_other(page_file):
    text = page_file.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:link|img|iframe|object|embed|source)\b", text)
    assert not re.findall(r"""\s(?:src|href)\s*=""", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_equal_entries_give_equal_pages(entries, page_file):
    text = page(entries, title="Three strategies", command="paceline compare task.py")
    assert text == page_file.read_text(encoding="utf-8")


def test_a_run_writes_its_own_page(tmp_path):
    run = trained("k-sync:k=3")
    run.report(tmp_path / "deep" / "report.html")
    text = unescape((tmp_path / "deep" / "report.html").read_text(encoding="utf-8"))
    assert "<h1>k-sync:k=3 on 4 simulated workers</h1>" in text
    assert f"{run.metric:.4f}" in text


def test_a_page_needs_an_entry():
    with refused("entries", []):
        page([], title="nothing")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("path", has("file/report.html")):
        trained("sync", steps=1).report(tmp_path / "file" / "report.html")


def test_five_strategies_of_fifty_thousand_spans_fit_into_the_bound(tmp_path):
    entries = [entry(f"strategy {n}", many_spans(10_000, seed=n)) for n in range(5)]
    write_page(tmp_path / "report.html", entries, title="many")
    assert (tmp_path / "report.html").stat().st_size < SIX_MB


@pytest.mark.slow
def test_more_spans_than_there_is_room_for_fit_too(long_page_file):
    assert long_page_file.stat().st_size < SIX_MB
