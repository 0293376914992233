"""Predictions of published runs, with the constants of `pl.devices.A100`. docs/predict.md has the table."""

import pytest

from benchmarks.published import Constants, accuracy_of, predicted_s, published_2021, rows_of


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("table", "mean", "ninth_decile", "tau", "regret"),
    [("one host", 0.08, 0.20, 0.8, 0.04), ("many hosts", 0.07, 0.17, 0.7, 0.02)],
)
def test_rows_that_are_not_fitted_are_predicted(table, mean, ninth_decile, tau, regret):
    rows = rows_of(table)[1::2]
    found = accuracy_of(rows, [predicted_s(row, Constants().cluster) for row in rows])
    assert found.mean <= mean
    assert found.ninth_decile <= ninth_decile
    assert found.tau >= tau
    assert found.regret <= regret


@pytest.mark.slow
@pytest.mark.parametrize(("row", "tflops"), published_2021(), ids=lambda each: getattr(each, "hidden", None))
def test_runs_of_another_cluster_are_predicted_without_fitting(row, tflops):
    seconds = predicted_s(row, lambda devices: Constants().cluster(devices, "1600Gbps"))
    assert tflops * row.seconds / seconds == pytest.approx(tflops, rel=0.12)
