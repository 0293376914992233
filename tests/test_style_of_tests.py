"""Tests check errors by type and fields (see `refusals`), so that a message can be reworded without touching a
test."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py"))
MOST_WORDS = 4
"""Maximum number of words in a fact: a name, a path, a number with its unit, or a short text. More is a sentence."""


def texts_in(node):
    return [
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


def name_of(call):
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def sentences_in(source):
    """Return the texts with which calls in this source compare an error or a warning."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        if name_of(call) in ("raises", "warns"):
            for keyword in call.keywords:
                if keyword.arg == "match" and not _is_one_word(keyword.value):
                    yield ast.unparse(keyword.value)
        elif name_of(call) in ("has", "raised"):
            yield from (
                fact for each in call.args for fact in texts_in(each) if len(fact.split()) > MOST_WORDS
            )


def _is_one_word(node):
    return isinstance(node, ast.Constant) and len(str(node.value).split()) == 1


@pytest.mark.parametrize("file", FILES)
def test_no_test_depends_on_the_wording_of_an_error(file):
    assert list(sentences_in((TESTS / file).read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('pytest.raises(ValueError, match="must be at least 1")', 1),
        ("pytest.raises(ValueError, match=message)", 1),
        ('pytest.warns(UserWarning, match=f"{rank} is slow")', 1),
        ('pytest.raises(ValueError, match="read-only")', 0),
        ('raised(RunError, "rank 1", "it has not been seen since")', 1),
        ('refused("k", 9, bound=has("must be a whole number"))', 1),
        ('refused("k", 9, bound=has(4, "row 0, column 3"))', 0),
    ],
)
def test_wordings_are_found_in_calls(source, found):
    assert len(list(sentences_in(source))) == found
