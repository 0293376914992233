"""Conversion of a run's lists to arrays and back."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.clusters.rank.columns import Columns, Rows

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False))
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(0, 2**40),
            "metric": NUMBERS,
            "extra": st.dictionaries(
                st.sampled_from(["d_loss", "a/b", "consensus"]), st.floats(allow_nan=False)
            ),
        },
        optional={"loss": st.floats(allow_nan=False), "samples": st.integers(0, 2**40)},
    ),
)


@given(RECORDS, st.integers(0, 5))
def test_records_come_back_as_they_were(records, first):
    columns = Columns()
    columns.arrays(records[:first])
    assert Columns.rows(columns.arrays(records), "metric") == records


@given(st.lists(st.tuples(st.integers(0, 2**40), st.floats(allow_nan=False))), st.integers(0, 5))
def test_tuples_come_back_as_they_were(rows, first):
    kept = Rows("step", "loss")
    kept.arrays(rows[:first])
    assert Rows("step", "loss").rows(kept.arrays(rows)) == rows


def test_whole_numbers_stay_whole():
    (record,) = Columns.rows(Columns().arrays([{"step": 3, "metric": 0.5, "extra": {}}]), "metric")
    assert type(record["step"]) is int
