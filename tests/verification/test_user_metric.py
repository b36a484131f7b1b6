"""A user's own metric: where it comes from, what it is given, and what is wrong with others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.verification.user_metric import load_metric

SOURCE = """
import helper

def top1_loss(exact, low):
    same = [helper.best(a["y"]) == helper.best(b["y"]) for a, b in zip(exact, low)]
    return 1.0 - sum(same) / len(same)

def fails(exact, low):
    return exact[0]["no such output"]

def speaks(exact, low):
    return "much"

def unknown(exact, low):
    return float("nan")

number = 3
"""
EXACT = [{"y": np.float32([1, 2])}, {"y": np.float32([4, 3])}]
LOW = [{"y": np.float32([1, 2])}, {"y": np.float32([2, 3])}]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper.py").write_text("def best(row):\n    return int(row.argmax())\n")
    (tmp_path / "measure.py").write_text(SOURCE)
    return tmp_path / "measure.py"


def test_a_function_of_a_file_is_given_all_samples(file):
    metric = load_metric(f"{file}:top1_loss", 0.1)
    assert metric is not None
    assert metric.of(EXACT, LOW) == 0.5
    assert metric.of(EXACT, EXACT) == 0.0
    assert metric.bound == 0.1


def test_a_function_of_python_needs_no_file():
    metric = load_metric(lambda exact, low: len(exact) - len(low), 0)
    assert metric is not None
    assert metric.of(EXACT, EXACT) == 0.0


def test_what_is_not_a_number_is_too_much(file):
    metric = load_metric(f"{file}:unknown", 1.0)
    assert metric is not None
    assert metric.of(EXACT, LOW) == math.inf


def test_without_both_options_there_is_none():
    assert load_metric(None, None) is None


@pytest.mark.parametrize("name", ["fails", "speaks"])
def test_what_the_function_raises_is_told(file, name):
    metric = load_metric(f"{file}:{name}", 1.0)
    assert metric is not None
    with pytest.raises(InputError, match=rf"metric .*{name}: (KeyError|ValueError): .*returns a number"):
        metric.of(EXACT, LOW)


# metric, bound -> the words of the error
WRONG = {
    "no bound": ("{file}:top1_loss", None, "go together"),
    "no function": (None, 0.1, "go together"),
    "no colon": ("{file}", 0.1, "expected FILE.py:FUNCTION"),
    "no such function": ("{file}:top5_loss", 0.1, "has no function 'top5_loss'"),
    "not a function": ("{file}:number", 0.1, "has no function 'number'"),
    "infinite bound": ("{file}:top1_loss", math.inf, "expected a finite number"),
    "a bound that is a truth value": ("{file}:top1_loss", True, "expected a finite number"),
}


@pytest.mark.parametrize(("given", "bound", "words"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_refused(file, given, bound, words):
    with pytest.raises(OptionError, match=words):
        load_metric(given and given.format(file=file), bound)


def test_a_missing_file_and_a_broken_one_are_told(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        load_metric(f"{tmp_path / 'none.py'}:f", 1.0)
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(InputError, match=r"broken\.py cannot be run: SyntaxError"):
        load_metric(f"{tmp_path / 'broken.py'}:f", 1.0)
