"""Expected errors by type and fields: tests do not depend on the wording of messages.

    with refused("k", 9, bound=has(4)):            # ConfigurationError: argument "k", value 9, and 4 is in the bound
    with raised(PeerLost, rank=1, reason=has("SIGKILL")):

Both can be stored in a table of `pytest.mark.parametrize` and entered more than once.
"""

import re

import pytest

from paceline.errors import ConfigurationError, UnknownNameError

__all__ = ["has", "raised", "refused", "unknown"]

_ANY = object()


class has:  # noqa: N801  (reads as a verb: reason=has("SIGKILL"))
    """Equal to any value with a text that contains all of these facts (names, numbers, paths), each as a whole
    word."""

    def __init__(self, *facts):
        self.facts = [str(fact) for fact in facts]

    def __eq__(self, other):
        return all(re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", str(other)) for fact in self.facts)

    __hash__ = None

    def __repr__(self):
        return f"has({', '.join(map(repr, self.facts))})"


class raised:  # noqa: N801  (used as a function, as pytest.raises is)
    """Expect an error with these fields, and with these facts in its text if it has no fields for them.

    Entering it yields what `pytest.raises` yields.
    """

    def __init__(self, error, *facts, **fields):
        self.error = error
        self.facts = has(*facts)
        self.fields = fields

    def __enter__(self):
        self._raises = pytest.raises(self.error)
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(self, kind, error, traceback):
        expected = self._raises.__exit__(kind, error, traceback)
        if expected:
            found = {name: getattr(error, name) for name in self.fields}
            assert found == self.fields
            assert self.facts == str(error)
        return expected


def refused(argument, value=_ANY, *, error=ConfigurationError, **fields):
    """Expect that an argument is refused."""
    if value is not _ANY:
        fields["value"] = value
    return raised(error, argument=argument, **fields)


def unknown(argument, value, **fields):
    """Expect that a name is refused because it is not in its table. `nearest` is the name that is suggested."""
    return refused(argument, value, error=UnknownNameError, **fields)
