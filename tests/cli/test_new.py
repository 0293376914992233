import shlex

from cli.test_cli import invoke


def test_what_is_written_trains_as_it_is_and_reaches_its_target(tmp_path):
    file = tmp_path / "mine.py"
    assert invoke("new", str(file)).exit_code == 0
    assert f"paceline check {file}" in file.read_text()
    words = ("--simulate", "--compute", "const:1ms", "--workers", "2", "--epochs", "5", "--stop-at-target")
    result = invoke("train", str(file), *words)
    assert result.exit_code == 0, result.stderr
    assert "reached after" in result.stdout


def test_a_file_that_exists_is_not_overwritten_unless_asked_for(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("precious")
    result = invoke("new", str(file))
    assert result.exit_code == 2
    assert "FILE must not exist yet" in result.stderr
    assert file.read_text() == "precious"
    assert invoke("new", str(file), "--force").exit_code == 0
    assert "pl.Task(" in file.read_text()


def test_a_file_that_python_would_not_import_is_refused(tmp_path):
    result = invoke("new", str(tmp_path / "mine.txt"))
    assert result.exit_code == 2
    assert "FILE must end in .py" in result.stderr


def test_a_name_with_a_blank_is_quoted_in_what_to_type_next(tmp_path):
    file = tmp_path / "my task.py"
    told = invoke("new", str(file)).stdout
    assert shlex.split(told.partition("next: ")[2]) == ["paceline", "check", str(file)]
    assert f"paceline check '{file}'" in file.read_text()
