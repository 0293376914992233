"""A strategy that does not inherit from `Strategy` has its defaults."""

from paceline.clusters.base.declarations import Declarations
from paceline.strategies import parse


class Bare:
    expendable = ("worker",)

    def roles(self, workers):
        return ("worker",) * workers


def test_what_a_class_lacks_has_the_default():
    declared = Declarations.of(Bare())
    assert (declared.holds_parts, declared.in_step, declared.cuts_model, declared.replicates) == (
        False,
        False,
        False,
        (),
    )
    assert not declared.divides_batch(1)
    assert declared.divides_batch(2)


def test_what_a_class_declares_is_used():
    assert Declarations.of(Bare()).expendable == ("worker",)
    declared = Declarations.of(parse("pipeline:microbatches=1"))
    assert declared.holds_parts
    assert declared.cuts_model
    assert not declared.divides_batch(2)
