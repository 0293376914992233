import pytest
from report.cases import entry, many_spans

from paceline.report import write_page


@pytest.fixture(scope="session")
def entries():
    return [entry(strategy) for strategy in ("all-reduce:algorithm=ring", "k-sync:k=3", "async")]


@pytest.fixture(scope="session")
def page_file(entries, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, entries, title="Three strategies", command="paceline compare task.py")
    return path


@pytest.fixture(scope="session")
def long_page_file(tmp_path_factory):
    """Of a run with more spans than a page has room for."""
    path = tmp_path_factory.mktemp("report") / "long.html"
    write_page(path, [entry("all-reduce", many_spans(420_000))], title="Long")
    return path


@pytest.fixture
def page(open_page, page_file):
    return open_page(page_file)


@pytest.fixture(scope="session")
def shown(browser, page_file):
    """A page for tests that look at it and leave it as it is."""
    return browser.page(page_file)
