import re
from html import unescape

import pytest
from report.cases import entry, trained

import paceline as pl
from paceline.analysis.comparison.entry import Entry
from paceline.report import write_page
from paceline.report.story import story_section

HOSTILE = "<b>&\"'"


def a_proof(title="On 4 machines"):
    """The measured run of one of three strategies is of workers twice as slow."""
    predicted = pl.Comparison(entries=(entry("single"), entry("sync"), Entry(name=HOSTILE, error=HOSTILE)))
    slower = trained("sync", slow={n: 8.0 if n == 3 else 2.0 for n in range(4)})
    return pl.Proof(
        title=title, predicted=predicted, measured=pl.Comparison(entries=(entry("sync", slower),))
    )


@pytest.fixture(scope="module")
def proof():
    return a_proof()


def text_of(markup):
    return unescape(re.sub(r"<[^>]+>", " ", markup))


def test_without_a_story_there_is_no_section():
    assert story_section([]) == ""


def test_paragraphs_and_bars_stand_in_their_order_and_the_first_paragraph_leads(proof):
    markup = story_section(["First.", proof, "Second."])
    assert markup.index('<p class="lead">First.') < markup.index("<figure") < markup.index("<p>Second.")


def test_a_row_tells_what_was_predicted_and_measured(proof):
    row = next(row for row in proof.rows if row.measured is not None)
    text = " ".join(text_of(story_section([proof])).split())
    assert f"predicted: {row.texts[1]}, {row.predicted.speed_up:.1f}\u00d7" in text
    assert f"measured: {row.texts[3]}, {100 * row.error:+.1f} %" in text


def test_the_longest_bar_fills_its_place_and_the_others_are_in_proportion(proof):
    widths = [float(width) for width in re.findall(r'<svg[^>]* width="([\d.]+)%"', story_section([proof]))]
    times_s = [
        each.time_s for row in proof.rows for each in (row.predicted, row.measured) if each and each.time_s
    ]
    assert widths == pytest.approx([100 * time_s / max(times_s) for time_s in times_s], abs=0.01)
    assert max(widths) == 100


def test_what_comes_from_a_user_is_escaped(proof):
    markup = story_section([HOSTILE, a_proof(HOSTILE)])
    assert "<b>" not in markup
    assert text_of(markup).count(HOSTILE) == 4  # paragraph, title, name, error


def test_a_page_begins_with_its_story(proof, tmp_path):
    write_page(tmp_path / "page.html", proof.measured.entries, title="Mine", story=["First.", proof])
    page = (tmp_path / "page.html").read_text()
    assert 0 < page.index('id="story"') < page.index('id="summary"')
    assert "style=" not in page[page.index('id="story"') : page.index('id="summary"')], (
        "the policy forbids it"
    )
