"""`paceline explain`, and the number in the message of a failed command."""

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.cli.explain import codes


@pytest.mark.parametrize("spelling", ["PL-033", "pl-033", "33", "033"])
def test_a_number_prints_its_page(spelling):
    result = CliRunner().invoke(app, ["explain", spelling])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("# PL-033 LossNotFiniteError\n")


def test_without_a_number_all_errors_are_listed():
    result = CliRunner().invoke(app, ["explain"])
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == codes()


@pytest.mark.parametrize("code", ["PL-999", "LossNotFiniteError"])
def test_an_unknown_number_is_refused(code):
    result = CliRunner().invoke(app, ["explain", code])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "PL-011" in result.stderr


def test_the_message_of_an_error_leads_to_its_page():
    result = CliRunner().invoke(app, ["strategies", "al-reduce"])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "more: paceline explain PL-011"
