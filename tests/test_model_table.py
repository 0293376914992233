"""docs/model_table.md states which strategy trains which model of tests/zoo. `make model-table` measures it again."""

import pytest
from test_docs import DOCS, script
from zoo.measuring import COLUMNS, EQUAL, TRAINS, measure, measure_row
from zoo.rows import MORE, ROWS, TRANSFORMERS

PAGE = DOCS / "model_table.md"

# Each of these takes minutes on a slow machine. `make test-all` measures a few rows, `make test-every` all others.
OFTEN = {"nanoGPT", "Llama", "T5", "ResNet18", "U-Net", "LSTM language model", "message passing"}
MORE_OFTEN = {"ShuffleNetV2", "nn.Transformer"}


def rows(names, often):
    return [name if name in often else pytest.param(name, marks=pytest.mark.exhaustive) for name in names]


@pytest.fixture(scope="module")
def table():
    return script("model_table").read(PAGE.read_text())


def rows_with(table, column):
    return {row for row, cells in table.items() if cells[column] in (EQUAL, TRAINS)}


def test_the_table_has_every_model_and_every_strategy(table):
    assert list(table) == list(ROWS)
    assert all(list(cells) == list(COLUMNS) for cells in table.values())


def test_the_page_is_that_of_the_script(table):
    assert PAGE.read_text() == script("model_table").page(table)


def test_every_cell_is_right_or_refused(table):
    cells = {cell for row in table.values() for cell in row.values()}
    assert all(cell in (EQUAL, TRAINS) or cell.startswith("PL-010: ") for cell in cells)


def test_strategies_that_keep_the_model_whole_train_every_model(table):
    for column in ("all-reduce", "async", "local-sgd", "zero 1"):
        assert rows_with(table, column) == set(ROWS)


def test_zero_trains_every_model_without_its_own_step(table):
    assert set(ROWS) - rows_with(table, "zero 3") <= {"GAN"}


def test_pipelines_train_most_models(table):
    assert len(rows_with(table, "pipeline")) >= 14


def test_tensor_parallelism_trains_every_transformer(table):
    assert set(TRANSFORMERS) <= rows_with(table, "tensor")


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(ROWS, OFTEN))
def test_a_row_is_what_is_measured(row, table):
    assert measure_row(row) == table[row], "run make model-table"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("nanoGPT", "tensor"),
        ("Llama", "pipeline"),
        ("T5", "hybrid"),
        ("ResNet18", "zero 3"),
        ("U-Net", "layers"),
    ],
)
def test_processes_give_the_same_cell(row, column, table):
    assert measure(row, column, "local") == table[row][column]


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(MORE, MORE_OFTEN))
def test_more_models_are_trained_by_every_strategy_that_cuts_them(row):
    found = measure_row(row, ("zero 3", "layers", "pipeline", "tensor"))
    assert found == dict.fromkeys(found, EQUAL)
