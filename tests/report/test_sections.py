import re
from html import unescape

from report.cases import entry, handmade, history_of, trained

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.table import cells, columns, rows
from paceline.report.sections import figures_table, provenance, run_sentences, summary_list, where_line


def texts(markup, tag):
    found = re.findall(rf"<{tag}[ >].*?</{tag}>", markup, flags=re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", each)) for each in found]


def test_the_table_has_the_cells_of_the_command_line(entries):
    table = rows(entries)
    markup = figures_table(entries)
    body = [re.findall(r"<t[hd][ >].*?</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", markup)]
    found = [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in body]
    assert found == [columns(table), *(cells(row, table) for row in table)]


def test_a_failed_entry_says_why_across_its_row():
    markup = figures_table([entry("sync"), Entry(name="broken", error="rank 2 raised ValueError")])
    assert texts(markup, "td")[-1] == "failed: rank 2 raised ValueError"
    assert "failed" not in texts(markup, "th")


def test_text_is_escaped_wherever_it_stands():
    hostile = "<script>alert(1)</script>&\"'"
    run = handmade(history=history_of([1.0]), environment={"command": hostile, "system": hostile})
    run.strategy = run.cluster = hostile
    entries = [entry(hostile, run), Entry(name=hostile, error=hostile)]
    markup = "".join(
        [
            figures_table(entries),
            provenance(entries, None),
            provenance(entries, hostile),
            where_line(entries, "title"),
            summary_list([hostile, hostile]),
        ]
    )
    assert "<script" not in markup
    assert hostile in unescape(markup)
    assert not re.search(r"[\"']'?>?&(?!amp;|lt;|gt;|quot;|#x27;)", markup)


def test_what_is_needed_to_repeat_a_run_is_there():
    run = trained("k-sync:k=3", seed=7)
    markup = unescape(provenance([entry("k-sync:k=3", run)], "paceline train task.py --seed 7"))
    for fact in ("paceline train task.py --seed 7", run.cluster, "k-sync:k=3", "4 workers, 1 server"):
        assert fact in markup
    for name in ("paceline", "python", "torch", "system", "cores"):
        assert run.environment[name] in markup
    assert texts(markup, "td") == ["7", "24", "4 workers, 1 server"]


def test_without_a_command_the_runs_own_stand_there_once():
    runs = [handmade(environment={"command": "python task.py"}) for _ in range(2)]
    markup = provenance([entry("x", *runs)], None)
    assert markup.count("python task.py") == 1


def test_runs_made_elsewhere_have_a_machine_each():
    here, there = handmade(environment={"system": "Linux"}), handmade(environment={"system": "Plan 9"})
    there.strategy = "sync"
    markup = provenance([entry("all-reduce", here), entry("sync", there)], None)
    assert texts(markup, "p") == ["all-reduce:", "sync:"]
    assert texts(markup, "dd") == ["Linux", "Plan 9"]


def test_an_old_run_says_that_its_machine_is_not_known():
    assert "not recorded" in provenance([entry("x", handmade())], None)


def test_the_head_says_where_most_runs_took_place():
    runs = [handmade() for _ in range(3)]
    runs[0].cluster = "another"
    assert where_line([entry("x", *runs[1:])], "title") == "a cluster"
    assert where_line([entry("x", *runs)], "title").startswith("a cluster (most runs")
    assert where_line([entry("x", *runs[1:])], "x on a cluster") == ""
    assert where_line([Entry(name="x", error="no")], "title") == ""


def test_a_run_alone_is_told_in_a_sentence(entries):
    run = handmade(history=history_of([1.0] * 4, metric=0.5), seconds=8.0, target=0.5)
    told = "4 steps took 8 s, 2 s each; the target of 0.5 was reached after 1 s; the metric ended at 0.5000."
    assert run_sentences([entry("x", run)]) == [told]
    assert run_sentences([entry("x", handmade(seconds=0.0))]) == ["0 steps took 0 s."]
    assert run_sentences(entries) == []
