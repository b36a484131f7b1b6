"""docs/paddle_names.md says of every public name of Paddle's whether it is here: held to the code."""

import importlib
import inspect
import re

import pytest

import paddle_names
from amp_transpiler.paddle import static
from amp_transpiler.paddle.tensor.methods import METHODS

TEXT = paddle_names.PAGE.read_text(encoding="utf-8")
NAMES = paddle_names.known_names(TEXT)


def test_the_page_is_what_the_package_hands_out():
    assert paddle_names.page(NAMES) == TEXT


def test_most_names_are_there():
    for section, share in {"paddle": 0.9, "Tensor": 0.93, "nn.functional": 0.94, "linalg": 0.9}.items():
        have = sum(name in paddle_names.handed_out(section) for name in NAMES[section])
        assert have >= share * len(NAMES[section]), section


@pytest.mark.parametrize("section", ["paddle", "nn.functional", "linalg"])
def test_functions_are_documented_and_take_a_name(section):
    module = importlib.import_module("amp_transpiler.paddle" + ("" if section == "paddle" else f".{section}"))
    undocumented, nameless = [], []
    for name in NAMES[section]:
        found = getattr(module, name, None)
        if not inspect.isfunction(found):
            continue
        if not inspect.getdoc(found):
            undocumented.append(name)
        if (
            found.__module__.startswith("amp_transpiler.paddle.tensor.")
            and "name" not in inspect.signature(found).parameters
        ):
            nameless.append(name)
    assert (undocumented, nameless) == ([], [])


def test_methods_are_functions_of_a_variable():
    assert all(callable(function) for function in METHODS.values())


def test_a_name_that_is_missing_needs_a_reason():
    with pytest.raises(LookupError, match="nonsense"):
        paddle_names.page(NAMES | {"linalg": ["nonsense"]})


@pytest.mark.parametrize(
    ("home", "name", "words"),
    [
        ("", "Model", "there is no dynamic mode"),
        ("", "vision", "write a Dataset and a Layer"),
        ("", "complex64", "no operators on complex numbers"),
        (".linalg", "eig", "no operators on complex numbers"),
        (".nn.functional", "sparse_attention", "a CUDA kernel"),
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
