"""The messages about the steps of the workers' loops."""

import paceline as pl
from paceline.loop.facts_table import FactsTable


def test_a_table_that_is_closed_can_still_be_read():
    async def program(ctx):
        table = FactsTable(ctx)
        before = dict(table.ended())  # it begins to receive
        table.close()
        return before == dict(table.ended()) == {}

    assert pl.run_program(program, pl.Local(workers=2)).results == [True, True]
