import json
import math

from report.cases import history_of

from paceline.report.curves import curve, loss_curves


def loss_of(record):
    return record.loss


def test_a_short_history_is_kept_as_it_is():
    line = curve(history_of([3.0, 2.0, 1.5]), loss_of)
    assert line == {
        "steps": [1, 2, 3],
        "seconds": [1, 2, 3],
        "samples": [8, 16, 24],
        "bytes": [100, 200, 300],
        "value": [3, 2, 1.5],
    }


def test_a_long_history_is_thinned_and_keeps_its_ends_peaks_and_troughs():
    losses = [math.sin(place / 700) for place in range(100_000)]
    losses[41_234], losses[77_777] = 50.0, -50.0
    line = curve(history_of(losses), loss_of)
    assert len(line["value"]) <= 1202
    assert {50.0, -50.0} <= set(line["value"])
    assert (line["steps"][0], line["steps"][-1]) == (1, 100_000)
    assert line["steps"] == sorted(line["steps"])
    assert len({len(column) for column in line.values()}) == 1


def test_what_is_no_number_is_a_gap():
    line = curve(history_of([1.0, math.nan, math.inf, 2.0]), loss_of)
    assert line["value"] == [1, None, None, 2]
    json.dumps(line, allow_nan=False)


def test_a_history_without_numbers_has_no_line():
    assert curve(history_of([math.nan, math.nan]), loss_of) is None
    assert curve([], loss_of) is None
    assert loss_curves(history_of([math.nan] * 100)) == {"raw": None, "smooth": None}


def test_only_records_that_have_the_value_are_on_the_line():
    history = history_of([1.0], consensus=0.25) + history_of([1.0, 1.0])[1:]
    line = curve(history, lambda record: record.extra.get("consensus"))
    assert (line["steps"], line["value"]) == ([1], [0.25])


def test_the_smooth_line_is_the_mean_about_each_step():
    losses = [
        1.0,
        3.0,
    ] * 100  # 3 % of 200 steps: a window of 6, which holds as many of the one as of the other
    smooth = loss_curves(history_of(losses))["smooth"]
    assert set(smooth["value"][3:-3]) == {2.0}


def test_few_steps_have_no_smooth_line():
    assert loss_curves(history_of([1.0] * 60))["smooth"] is None
    assert loss_curves(history_of([1.0] * 70))["smooth"] is not None


def test_a_diverged_loss_leaves_the_smooth_line_whole():
    smooth = loss_curves(history_of([2.0] * 100 + [math.inf] + [2.0] * 99))["smooth"]
    assert set(smooth["value"]) == {2.0}
