"""Short import paths: `amp_transpiler.nn.functional` and `amp_transpiler.paddle.nn.functional` are one module."""

import importlib
import pickle
import subprocess
import sys

import pytest

import amp_transpiler
from amp_transpiler.aliases import install_aliases

# short path -> the module's own
PATHS = {
    "debugging": "paddle.static.amp.debugging",
    "nn": "paddle.nn",
    "nn.functional": "paddle.nn.functional",
    "nn.functional.activation": "paddle.nn.functional.activation",
    "nn.initializer": "paddle.nn.initializer",
    "optimizer": "paddle.optimizer",
    "optimizer.lr": "paddle.optimizer.lr",
    "regularizer": "paddle.regularizer",
    "static": "paddle.static",
    "static.amp": "paddle.static.amp",
    "static.nn": "paddle.static.nn",
    "tensor": "paddle.tensor",
    "training_log": "paddle.training_log",
    "utils": "paddle.utils",
    "utils.unique_name": "paddle.utils.unique_name",
}


def in_a_new_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("alias", PATHS)
def test_both_paths_are_one_module(alias):
    module = importlib.import_module(f"amp_transpiler.{alias}")
    assert module is importlib.import_module(f"amp_transpiler.{PATHS[alias]}")
    assert module.__name__ == module.__spec__.name == f"amp_transpiler.{PATHS[alias]}"


@pytest.mark.parametrize(
    "order", [("nn.functional", "paddle.nn.functional"), ("paddle.nn.functional", "nn.functional")]
)
def test_either_path_may_be_imported_first(order):
    first, second = (f"amp_transpiler.{path}" for path in order)
    assert in_a_new_process(f"import {first} as a, {second} as b; print(a is b, a.relu is b.relu)") == "True True"


def test_a_submodule_can_be_imported_without_its_package():
    code = "from amp_transpiler.optimizer.lr import StepDecay; print(StepDecay.__module__)"
    assert in_a_new_process(code) == "amp_transpiler.paddle.optimizer.lr"


def test_attributes_and_imports_agree():
    assert amp_transpiler.nn.functional is importlib.import_module("amp_transpiler.nn.functional")
    assert amp_transpiler.paddle.static is amp_transpiler.static
    assert amp_transpiler.static.amp.debugging is amp_transpiler.debugging


@pytest.mark.parametrize("path", ["nonsense", "nn.nonsense", "nn.functional.nonsense", "regularizer.nonsense"])
def test_what_does_not_exist_is_not_found(path):
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        importlib.import_module(f"amp_transpiler.{path}")
    assert f"amp_transpiler.{path}" not in sys.modules


def test_an_object_pickled_by_one_path_is_of_the_same_class_by_the_other():
    by_own_path, short = (
        importlib.import_module(f"amp_transpiler.{path}") for path in ("paddle.nn.initializer", "nn.initializer")
    )
    copy = pickle.loads(pickle.dumps(short.Uniform(-2.0, 2.0)))
    assert isinstance(copy, by_own_path.Uniform)
    assert copy == by_own_path.Uniform(-2.0, 2.0)


def test_a_module_can_be_reloaded_by_its_short_path():
    code = """
import importlib, sys
import amp_transpiler.nn.clip as short
import amp_transpiler.paddle.nn.clip as own
before = own.ClipGradByNorm
again = importlib.reload(short)
print(again is own, sys.modules["amp_transpiler.nn.clip"] is own, own.ClipGradByNorm is before)
"""
    assert in_a_new_process(code) == "True True False"


def test_reloading_the_package_installs_its_aliases_once():
    code = """
import importlib, sys, amp_transpiler
count = len(sys.meta_path)
importlib.reload(amp_transpiler)
import amp_transpiler.nn.functional as short
print(len(sys.meta_path) == count, short is amp_transpiler.paddle.nn.functional)
"""
    assert in_a_new_process(code) == "True True"


def test_a_module_that_fails_to_import_leaves_no_alias(tmp_path, monkeypatch):
    package = tmp_path / "aliased_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken.py").write_text("raise ValueError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install_aliases("aliased_package", {"short": "aliased_package.broken"})
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("aliased_package.short")
    assert "aliased_package.short" not in sys.modules
