"""Deprecated names and arguments work, warn once at the user's line, and say what to use."""

import inspect
import warnings

import pytest

from amp_transpiler.deprecation import deprecated, renamed_argument

SENTENCE = "is deprecated since 1.2 and goes in 2.0: use"


@deprecated(since="1.2", until="2.0", instead="double()")
def twice(number):
    """Return twice the number."""
    return 2 * number


@renamed_argument("num", "number", since="1.2", until="2.0")
def double(number, *, plus=0):
    return 2 * number + plus


def line():
    return inspect.currentframe().f_back.f_lineno


def test_a_deprecated_function_warns_at_the_line_of_its_caller():
    with pytest.warns(DeprecationWarning, match=SENTENCE) as found:
        result, here = twice(4), line()
    assert result == 8
    assert [str(one.message) for one in found] == [f"twice() {SENTENCE} double()"]
    assert (found[0].filename, found[0].lineno) == (__file__, here)
    assert twice.__doc__ == "Return twice the number."


def test_lines_of_the_package_are_skipped():
    """As if the package called a deprecated function of its own on behalf of the user."""
    space = {"__name__": "amp_transpiler.somewhere", "twice": twice}
    exec(compile("def within():\n    return twice(1)", "somewhere.py", "exec"), space)
    with pytest.warns(DeprecationWarning, match=SENTENCE) as found:
        space["within"]()
    assert found[0].filename == __file__


def test_an_old_name_of_an_argument_is_taken():
    with pytest.warns(DeprecationWarning, match=SENTENCE) as found:
        assert double(num=4, plus=1) == 9
    assert [str(one.message) for one in found] == [f"double(num=) {SENTENCE} number="]


def test_both_names_are_one_too_many():
    with pytest.raises(TypeError, match="'number' and also 'num', its old name"):
        double(number=1, num=1)


def test_new_names_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert double(4) == double(number=4) == 8
