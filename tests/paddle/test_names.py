"""docs/paddle_names.md says of every public name of Paddle's whether it is here: held to the code."""

import importlib
import inspect
import re

import pytest

import paddle_names
from amp_transpiler.paddle import static
from amp_transpiler.paddle.tensor.methods import METHODS

TEXT = paddle_names.PAGE.read_text(encoding="utf-8")
NAMES, ASKED = paddle_names.known_names(TEXT), paddle_names.asked_names(TEXT)


def test_the_page_is_what_the_package_hands_out():
    assert paddle_names.page(NAMES, ASKED) == TEXT


BELOW = {"`paddle.linalg`": "eigenvalues may be complex", "`paddle.static.nn`": "sequences of several lengths"}
"""Modules of which less than 95 % are here, and what is missing most."""


def test_of_the_names_of_static_graphs_95_in_100_are_here():
    counts = paddle_names.counts(NAMES)
    everything = paddle_names.total(counts)
    assert everything.here >= 0.95 * everything.of_static_graphs
    assert {c.module for c in counts if c.here < 0.95 * c.of_static_graphs} == set(BELOW)


def test_of_the_names_that_scripts_use_95_in_100_are_here():
    assert len(ASKED) > 150
    assert sum(map(paddle_names.is_there, ASKED)) >= 0.95 * len(ASKED)


def test_a_refused_or_unknown_name_is_not_here():
    asked = "static.py_func", "nonsense", "Tensor.nonsense", "nn.functional.relu", "Tensor.__mod__"
    assert list(map(paddle_names.is_there, asked)) == [False, False, False, True, True]


def test_a_page_that_is_old_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paddle_names.py", "--check"])
    monkeypatch.setattr(paddle_names, "page", lambda names, asked: TEXT + "more")
    assert paddle_names.main() == 1
    assert "is not what the package hands out" in capsys.readouterr().err


def test_a_share_that_is_too_small_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paddle_names.py", "--check"])
    monkeypatch.setattr(paddle_names, "counts", lambda names: [paddle_names.Count("all", 100, 10, 85)])
    monkeypatch.setattr(paddle_names, "page", lambda names, asked: TEXT)
    assert paddle_names.main() == 1
    assert "85 of 90 names are here: 95% is the goal" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["paddle", "nn.functional", "linalg"])
def test_functions_are_documented_and_take_a_name(section):
    module = importlib.import_module("amp_transpiler.paddle" + ("" if section == "paddle" else f".{section}"))
    undocumented, nameless = [], []
    for name in NAMES[section]:
        member = getattr(module, name, None)
        if not inspect.isfunction(member):
            continue
        if not inspect.getdoc(member):
            undocumented.append(name)
        if (
            member.__module__.startswith("amp_transpiler.paddle.tensor.")
            and "name" not in inspect.signature(member).parameters
        ):
            nameless.append(name)
    assert (undocumented, nameless) == ([], [])


def test_methods_are_functions_of_a_variable():
    assert all(callable(function) for function in METHODS.values())


def test_a_name_that_is_missing_needs_a_reason():
    with pytest.raises(LookupError, match="nonsense"):
        paddle_names.page(NAMES | {"linalg": ["nonsense"]}, ASKED)
    with pytest.raises(LookupError, match=r"static\.nonsense"):
        paddle_names.page(NAMES, ["static.nonsense"])


@pytest.mark.parametrize(
    ("home", "name", "words"),
    [
        ("", "DataParallel", "there is no dynamic mode"),
        ("", "Model", "call Executor.train"),
        ("", "vision", "write a Dataset and a Layer"),
        ("", "complex64", "no operators on complex numbers"),
        (".linalg", "eig", "no operators on complex numbers"),
        (".nn.functional", "moe_permute", "a CUDA kernel"),
        ("", "nonsense", "has no attribute 'nonsense'$"),
    ],
)
def test_a_missing_name_says_why(home, name, words):
    module = importlib.import_module(f"amp_transpiler.paddle{home}")
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert re.search(words, str(caught.value))
    assert not hasattr(module, name)


def test_a_missing_method_says_why():
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2])
        with pytest.raises(AttributeError, match="no attribute 'as_real': ONNX has no operators on complex numbers"):
            x.as_real()
        assert not hasattr(x, "nonsense")
