"""Messages: one line, nothing hidden in it, and no longer than they may be."""

import itertools

import pytest

from amp_transpiler.errors import AmpError, CheckFailed, InputError, ModelError, OptionError, innermost_text, visible

SHOWN = [
    ("plain /layer1/Conv", "plain /layer1/Conv"),
    ("naïve Знание 模型 🙂", "naïve Знание 模型 🙂"),
    ("\x1b[31mred", "\\x1b[31mred"),
    ("bell\a", "bell\\x07"),
    ("line\nline\r", "line\\nline\\r"),
    ("gnp.\u202eonnx", "gnp.\\u202eonnx"),
    ("\u2066a\u2069\u200f", "\\u2066a\\u2069\\u200f"),
    ("\x85\x9b", "\\x85\\x9b"),
    ("bad\udc80byte", "bad\\udc80byte"),
    ("\0", "\\x00"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_hidden_characters_are_shown(text, shown):
    assert visible(text) == shown
    assert str(OptionError(text)) == shown
    assert str(AmpError("where: " + text.replace("\n", ""))).isprintable()


@pytest.mark.parametrize("limit", [20, 60, 300])
@pytest.mark.parametrize("text", ["a" * 10**6, "\x1b" * 10**6, "start " + "\x1b" * 400 + " end"])
def test_long_texts_are_cut_in_the_middle(text, limit):
    shown = visible(text, limit)
    assert limit - 3 <= len(shown) <= limit
    assert "..." in shown


def test_both_ends_of_a_long_text_stay():
    shown = visible("first " + "x" * 1000 + " last", 100)
    assert shown.startswith("first x")
    assert shown.endswith("x last")
    assert len(shown) == 100


def test_the_message_about_a_model_has_at_most_300_characters():
    assert len(str(ModelError("node '" + "n" * 10**6 + "' is wrong"))) == 300


def chained(*errors, explicit):
    """Return the last of some errors, each raised from the one before, or while that one was handled."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__, error.__context__ = (cause, None) if explicit else (None, cause)
    return errors[-1]


# errors, the innermost first -> what is told
CAUSES = {
    "one": ((ValueError("a"),), "a"),
    "a cause": ((OSError("disk"), RuntimeError("outer")), "disk"),
    "a cause of a cause": ((KeyError("k"), OSError("middle"), RuntimeError("outer")), "'k'"),
    "without words": ((ValueError(), RuntimeError("outer")), "ValueError"),
    "several lines": ((ValueError("a\n  b\tc"),), "a b c"),
    "control characters": ((ValueError("a\x1b[31m"),), "a\\x1b[31m"),
    "a megabyte": ((ValueError("x" * 10**6), RuntimeError("outer")), visible("x" * 10**6, 160)),
}


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("case", CAUSES)
def test_the_innermost_cause_is_told(case, explicit):
    errors, told = CAUSES[case]
    assert innermost_text(chained(*errors, explicit=explicit)) == told


def test_a_message_of_several_lines_keeps_them():
    error = CheckFailed("first\nsecond \a", report=None)
    assert str(error) == "first\nsecond \\x07"
    assert isinstance(InputError(""), ValueError)
