"""The lists of docs/paddle_layers.md are those of the code."""

import importlib
import inspect
import pathlib
import re

import pytest

from amp_transpiler.paddle.framework.refusals import Refusal
from amp_transpiler.paddle.nn import functional

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "paddle_layers.md"


def _sections():
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^### `paddle\.([\w.]+)`$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


SECTIONS = _sections()


def _lists(section):
    listed, _, table = SECTIONS[section].partition("| not available")
    return re.findall(r"`(\w+)`", listed), re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_available_is_there_and_documented(section):
    module = importlib.import_module(f"amp_transpiler.paddle.{section}")
    for name in _lists(section)[0]:
        member = getattr(module, name)
        assert not isinstance(member, Refusal), name
        assert inspect.getdoc(member), name
        if function := getattr(member, "function", ""):
            assert hasattr(functional, function), name


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_not_available_is_refused_with_the_reason(section):
    module = importlib.import_module(f"amp_transpiler.paddle.{section}")
    for name, reason in _lists(section)[1]:
        member = getattr(module, name, None)
        if isinstance(member, Refusal):
            assert member.reason == reason
        else:
            assert reason == "dynamic mode's" or reason.startswith("needs `nn.functional."), name


@pytest.mark.parametrize("section", SECTIONS)
def test_no_name_is_listed_twice(section):
    available, missing = _lists(section)
    names = [*available, *(name for name, _ in missing)]
    assert len(names) == len(set(names)) > 1


@pytest.mark.parametrize("section", ["nn", "optimizer", "optimizer.lr", "metric", "io", "nn.initializer"])
def test_classes_of_ours_are_paddles(section):
    """No name is handed out that Paddle does not have, beside modules and a few of our own."""
    module = importlib.import_module(f"amp_transpiler.paddle.{section}")
    ours = {"Initializer", "LarsMomentum", "chosen_initializer", "default_collate_fn"}
    member = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    listed, missing = _lists(section)
    assert member - ours <= {*listed, *(name for name, _ in missing)}
