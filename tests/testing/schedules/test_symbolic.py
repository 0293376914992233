from __future__ import annotations

from paceline.testing.schedules.symbolic import Expressions


def test_a_single_addition_commutes_but_a_chain_does_not_associate():
    known = Expressions()
    a, b, c = (known.leaf(rank, 0) for rank in range(3))
    assert known.add(a, b) == known.add(b, a)
    assert known.add(known.add(a, b), c) == known.add(c, known.add(b, a))
    assert known.add(known.add(a, b), c) != known.add(a, known.add(b, c))


def test_an_expression_knows_whose_data_it_has():
    known = Expressions()
    total = known.add(known.leaf(5, 2), known.leaf(0, 2))
    assert known.describe(total) == "chunk 2 of ranks [0, 5]"
