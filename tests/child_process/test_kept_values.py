"""Values that stay in a child: fed again, added, measured where they are, and given back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.child import lease
from amp_transpiler.child_process.kept_values import KeptNumber, KeptValue
from amp_transpiler.child_process.remote import open_plain
from amp_transpiler.child_process.values import ValueStore
from amp_transpiler.conversion import plain_copy
from amp_transpiler.errors import InputError
from tests.support import parse

DOUBLE = "(float[n] x) => (float[n] y) { y = Add(x, x) }"
WORDS = "(string[n] x, string[n] z) => (string[n] y) { y = StringConcat(x, z) }"
X = np.arange(6, dtype=np.float32)


def _plain(text: str):
    return plain_copy(amp.load(parse(text, opset=20)))


@pytest.fixture
def doubled():
    """Yield a session that doubles, and its child."""
    with lease() as child, open_plain(_plain(DOUBLE), child) as session:
        yield session, child


def test_a_kept_value_is_fed_again_and_does_not_travel(doubled):
    session, _ = doubled
    held = session.run_keeping({"x": X}, ["y"], {"y"})["y"]
    assert isinstance(held, KeptValue)
    np.testing.assert_array_equal(session.run_keeping({"x": held}, ["y"], ())["y"], 4 * X)
    np.testing.assert_array_equal(session.run_keeping({"x": held}, ["y"], ())["y"], 4 * X)


def test_kept_values_and_arrays_are_added_in_the_child(doubled):
    session, _ = doubled
    held = session.run_keeping({"x": X}, ["y"], {"y"})["y"]
    for total, expected in ((held + held, 4 * X), (held + X, 3 * X), (X + held, 3 * X)):
        assert isinstance(total, KeptValue)
        np.testing.assert_array_equal(session.run_keeping({"x": total}, ["y"], ())["y"], 2 * expected)


def test_kept_values_are_measured_where_they_are(doubled):
    session, _ = doubled
    held = session.run_keeping({"x": X}, ["y"], {"y"})["y"]
    (measured,), (again,) = session.measure({"x": held}, ["y"], 2.0**-24, ["y"])
    assert (measured.largest, measured.smallest, measured.nonzero, measured.flushed) == (20.0, 4.0, 5, 0)
    np.testing.assert_array_equal(session.run_keeping({"x": again}, ["y"], ())["y"], 8 * X)


def test_a_value_that_nobody_holds_is_given_back_at_the_next_run(doubled):
    session, child = doubled
    held = session.run_keeping({"x": X}, ["y"], {"y"})["y"]
    number = KeptNumber(held._number)
    del held
    gc.collect()
    session.run_keeping({"x": X}, ["y"], {"y"})
    with pytest.raises(Exception, match="KeyError"):
        child.ask("add", number, X)


def test_all_values_go_with_the_last_session():
    with lease() as child:
        with open_plain(_plain(DOUBLE), child) as session:
            held = session.run_keeping({"x": X}, ["y"], {"y"})["y"]
        with pytest.raises(Exception, match="KeyError"):
            held + X


def test_strings_are_kept_and_fed_again():
    words = np.array(["one", "two"], dtype=object)
    with lease() as child, open_plain(_plain(WORDS), child) as session:
        held = session.run_keeping({"x": words, "z": words}, ["y"], {"y"})["y"]
        joined = session.run_keeping({"x": held, "z": words}, ["y"], ())["y"]
    assert list(joined) == ["oneoneone", "twotwotwo"]


def test_a_kept_value_of_a_wrong_rank_is_refused_as_an_array_is():
    with lease() as child, open_plain(_plain(DOUBLE), child) as session:
        with open_plain(_plain("(float[2,3] x) => (float[2,3] y) { y = Neg(x) }"), child) as other:
            held = other.run_keeping({"x": X.reshape(2, 3)}, ["y"], {"y"})["y"]
        with pytest.raises(InputError, match="Invalid rank for input"):
            session.run_keeping({"x": held}, ["y"], ())


def test_a_store_numbers_what_it_keeps():
    store = ValueStore()
    first, second = store.keep("a"), store.keep("b")
    store.drop([first.number])
    assert store.looked_up(second) == "b"
    assert store.looked_up("c") == "c"
    with pytest.raises(KeyError):
        store.looked_up(first)
