import re

from report.cases import entry, handmade, trained

from paceline.report.memory import MOST_ROWS, memory_section
from paceline.report.page import page


def held(total):
    return {"parameters": total, "total": total}


def ranks_in(markup):
    return re.findall(r'<th scope="row">(.*?)</th>', markup)


def test_the_page_has_what_each_rank_held():
    run = trained("k-sync:k=3")
    text = page([entry("k-sync:k=3", run)], title="memory")
    assert "Memory at the peak, by rank" in text
    assert ranks_in(memory_section([entry("k-sync:k=3", run)]))[-1] == str(len(run.memory) - 1)


def test_neighbours_that_held_the_same_share_a_row():
    run = handmade()
    run.memory = [held(5), held(7), held(7), held(7), held(5)]
    assert ranks_in(memory_section([entry("x", run)])) == ["0", "1-3", "4"]


def test_a_long_table_is_cut_off_and_says_so():
    run = handmade()
    run.memory = [held(rank) for rank in range(MOST_ROWS + 3)]
    markup = memory_section([entry("x", run)])
    assert len(ranks_in(markup)) == MOST_ROWS
    assert "3 more rows are left out" in markup


def test_runs_that_know_nothing_of_it_have_no_such_section():
    run = handmade()
    run.memory = []
    assert memory_section([entry("x", run)]) == ""


def test_a_name_is_escaped():
    run = handmade()
    run.memory = [held(1)]
    assert "<script" not in memory_section([entry("<script>", run)])


def test_what_ranks_hold_has_a_column_and_those_that_share_a_row_share_its_words():
    run = handmade(ranks=4)
    run.memory = [held(5)] * 4
    run.holds = [
        f"stage {stage} of 2: layers {'<a>' if stage else '0'}, tensor part {part} of 2"
        for stage in (0, 1)
        for part in (0, 1)
    ]
    markup = memory_section([entry("x", run)])
    assert ranks_in(markup) == ["0-1", "2-3"]
    assert re.findall(r'<td class="holds">(.*?)</td>', markup) == [
        "stage 0 of 2: layers 0",
        "stage 1 of 2: layers &lt;a&gt;",
    ]
    run.holds = []
    assert "holds" not in memory_section([entry("x", run)])
