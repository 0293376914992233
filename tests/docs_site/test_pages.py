"""The built site: no warning, no dead link, no request, no page that is too large or too wide for a phone."""

import html
import re
from urllib.parse import unquote

import build_site
import pytest
from report.chromium import LOADED

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]

MOST_BYTES = 2_000_000
PHONE = 380
_LINK = re.compile(r'(?:href|src)="([^"]+)"')
_ANCHOR = re.compile(r'\sid="([^"]+)"')
_RESOURCE = re.compile(r'<(?:script|img|link)\b[^>]*?(?:href|src)="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make site")
    folder = tmp_path_factory.mktemp("site")
    assert build_site.build(folder) == 0
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site):
    return sorted(site.rglob("*.html"))


@pytest.fixture(scope="module")
def sources(pages):
    return {path: path.read_text(encoding="utf-8") for path in pages}


def links(text):
    for address in _LINK.findall(text):
        if not re.match(r"[a-z]+:", address):
            path, _, anchor = html.unescape(address).partition("#")
            yield unquote(path).partition("?")[0], unquote(anchor)


def test_links_and_anchors_lead_somewhere(sources):
    ids = {path: set(_ANCHOR.findall(text)) for path, text in sources.items()}
    dead = set()
    for page, text in sources.items():
        for path, anchor in links(text):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                dead.add((page.name, path, anchor))
    assert dead == set()


def test_a_page_and_its_resources_are_at_most_two_megabytes(sources):
    for page, text in sources.items():
        names = {html.unescape(name).partition("?")[0] for name in _RESOURCE.findall(text)}
        files = {(page.parent / name).resolve() for name in names if not re.match(r"[a-z]+:", name)}
        total = page.stat().st_size + sum(file.stat().st_size for file in files if file.is_file())
        assert total <= MOST_BYTES, page


def test_pages_open_on_a_phone_without_requests_or_complaints(open_page, pages):
    shown = open_page(pages[0], width=PHONE, ready=LOADED)
    shown.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    too_wide = []
    for page in pages:
        shown.open(page, LOADED)
        if shown.value("document.documentElement.scrollWidth") > PHONE:
            too_wide.append(page.name)
    assert (shown.complaints(), shown.requests(), too_wide) == ([], [], [])


def test_commands_are_wrapped_and_pictures_keep_their_size_on_a_phone(open_page, site):
    shown = open_page(site / "docs/tutorial/04-waiting-for-the-slowest.html", width=PHONE, ready=LOADED)
    hidden = (
        "[...document.querySelectorAll('.command pre')].map((each) => each.scrollWidth - each.clientWidth)"
    )
    assert shown.value(hidden) == [0, 0]
    widths = "[...document.querySelectorAll('article img')].map((each) => each.clientWidth)"
    assert min(shown.value(widths)) > 1.5 * PHONE


def test_calculators_answer_the_keyboard_and_refuse_bad_numbers(open_page, site):
    shown = open_page(site / "docs" / "widgets" / "README.html", ready=LOADED)
    results = "[...document.querySelectorAll('.calculator .result')].map((each) => each.textContent)"
    before = shown.value(results)
    assert len(before) == 4
    assert all(before)
    inputs = shown.value("document.querySelectorAll('.calculator :is(input, select)').length")
    assert (
        shown.value("[...document.querySelectorAll('.calculator label')].filter((e) => e.control).length")
        == inputs
    )
    for kind in ("memory", "pipeline", "stragglers", "bandwidth"):
        shown.value(f"document.querySelector('[data-calculator={kind}] input').select()")
        shown.value(f"document.querySelector('[data-calculator={kind}] input').focus()")
        shown.key("2")
    after = shown.value(results)
    assert all(one != other for one, other in zip(before, after, strict=True) if "infinite" not in other)
    shown.value("document.querySelector('[data-calculator=memory] input').focus()")
    shown.key("-")
    assert shown.value(results)[0].startswith("Layers: ")
    assert shown.complaints() == []


def test_the_search_finds_a_page_offline(open_page, site):
    shown = open_page(site / "search.html", ready=LOADED)
    shown.call("Page.navigate", url=(site / "search.html").as_uri() + "?q=straggler")
    shown.wait_for("document.querySelectorAll('#search-results li a').length > 0")
    assert shown.complaints() == []
    assert shown.requests() == []
