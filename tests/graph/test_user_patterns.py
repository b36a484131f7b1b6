"""Patterns of users: the syntax of `re`, and no pattern that takes the machine."""

import itertools
import re
import types

import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.user_patterns import compile_pattern
from tests.work import counted_work

SAME_AS_RE = [
    "conv",
    "^/layer1/",
    "Conv$",
    r"layer\d+",
    "(?i)CONV",
    "(?P<digit>[0-9])",
    "conv|relu",
    "a{2}",
    "a{e}",
    "{",
    "x{,2}y",
    r"\{e\}",
    "[{e}]",
    "a{2}{e<=1}",
    "(?<!/)conv",
    "",
]
NAMES = ["/layer1/layer1.0/conv1/Conv", "relu_7", "aa", "a", "a{e}", "{", "xxy", "", "conv", "e"]

BAD = [
    ("(" * 5000, "nests groups too deeply"),
    ("(" * 100, "is not a regular expression"),
    ("(?:" * 300 + "a" + ")*" * 300, "nests groups too deeply"),
    ("a{99999999999}", "is not a regular expression"),
    ("a{4294967294}", "repeats too often"),
    ("((a{1000}){1000}){1000}", "repeats too often"),
    ("a|" * 9000, "at most 10000"),
    ("[", "is not a regular expression"),
    ("\x1b[31m(", "is not a regular expression"),
]


@pytest.mark.parametrize("text", SAME_AS_RE)
def test_ordinary_patterns_match_as_in_re(text):
    pattern, expected = compile_pattern(text, "--guard"), re.compile(text)
    for name in NAMES:
        assert pattern.search(name) == bool(expected.search(name)), name
        assert pattern.fullmatch(name) == bool(expected.fullmatch(name)), name


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_patterns_are_refused_at_once(text, message):
    with pytest.raises(OptionError, match=message) as caught, counted_work() as work:
        compile_pattern(text, "--guard")
    assert work.calls < 200_000
    assert str(caught.value).startswith("--guard pattern")
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()


def test_something_that_is_no_text_is_refused():
    with pytest.raises(OptionError, match="got bytes"):
        compile_pattern(b"conv", "guard")


def test_a_repeat_of_a_repeat_gets_an_answer():
    assert not compile_pattern("(a+)+$", "--guard").search("a" * 40 + "!")


def test_searching_stops_after_the_time_that_all_names_have(monkeypatch):
    monkeypatch.setattr("amp_transpiler.graph.user_patterns._SECONDS", 0.05)
    pattern = compile_pattern("(a|a)*$", "--guard")
    with pytest.raises(OptionError, match="takes too long on 'aaaa"):
        sum(pattern.search("a" * length + "!") for length in range(100))


def test_what_one_name_took_the_next_does_not_have(monkeypatch):
    monkeypatch.setattr("amp_transpiler.graph.user_patterns._SECONDS", 3600.0)
    pattern = compile_pattern("(a|a)*$", "--guard")
    clock = types.SimpleNamespace(perf_counter=itertools.count(0, 3600).__next__)
    monkeypatch.setattr("amp_transpiler.graph.user_patterns.time", clock)
    assert pattern.search("a")
    with pytest.raises(OptionError, match="takes too long on 'aaaa"):
        pattern.search("a" * 100 + "!")
