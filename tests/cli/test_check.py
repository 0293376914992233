from cli.test_cli import invoke


def test_a_task_is_built_tried_and_described(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    result = invoke("check", str(file), "--workers", "4")
    assert result.exit_code == 0, result.stderr
    told = dict(line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line)
    assert told["parameters"].strip().startswith("1,539, 1,539 of them trained")
    assert told["samples"].strip() == "3,000, 600 for tests"
    assert "of a batch of 64" in told["a gradient"]
    assert "of a slice of 16" in told["a gradient"]
    assert "it can be trained with every strategy" in result.stdout
    assert f"next: paceline train {file}" in result.stdout


def test_an_error_of_the_task_is_shown_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    invoke("new", str(file))
    file.write_text(file.read_text().replace("nn.Linear(64, 3)", "nn.Linear(63, 3)"))
    result = invoke("check", str(file))
    assert result.exit_code != 0
    assert "63" in result.stderr
