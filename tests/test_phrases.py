"""Counts and lists of names, as messages and reports write them."""

import pytest

from amp_transpiler.phrases import counted, first_few, quoted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 more casts"), (1, "1 more cast"), (2, "2 more casts"), (-1, "-1 more casts")]
)
def test_a_number_has_its_noun(number, words):
    assert counted(number, "more cast") == words


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (("a", "b", "c", "d"), "a, b, c and 1 more"),
        (dict.fromkeys("abcdef"), "a, b, c and 3 more"),
    ],
)
def test_many_names_are_cut_and_counted(texts, words):
    assert first_few(texts) == words


def test_a_list_may_be_longer():
    assert first_few(quoted("abcdef"), 5) == "'a', 'b', 'c', 'd', 'e' and 1 more"
