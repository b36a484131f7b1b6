"""Packages that import their public names when they are first used: one list, which tools and Python both read."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import amp_transpiler
from amp_transpiler import paddle
from amp_transpiler.lazy import lazy_names

LAZY = sorted(
    name
    for name in (
        "amp_transpiler",
        *(info.name for info in pkgutil.walk_packages(amp_transpiler.__path__, "amp_transpiler.") if info.ispkg),
    )
    if getattr(vars(importlib.import_module(name)).get("__getattr__"), "__module__", "") == "amp_transpiler.lazy"
)

# Paddle's namespace, as the design lists it: a name of each part.
PADDLE = """
    CPUPlace CUDAPlace ParamAttr TrainingLog enable_static seed reshape mean matmul sum
    amp.AutoMixedPrecisionLists amp.debugging.collect_operator_stats amp.decorate
    nn.ClipGradByGlobalNorm nn.initializer.Normal
    nn.functional.cross_entropy nn.functional.dropout nn.functional.relu nn.functional.softmax_with_cross_entropy
    optimizer.Adam optimizer.AdamW optimizer.Lamb optimizer.Momentum optimizer.SGD optimizer.lr.StepDecay
    regularizer.L1Decay regularizer.L2Decay
    static.Executor static.Program static.Scope static.append_backward static.data static.default_main_program
    static.default_startup_program static.from_onnx static.global_scope static.gradients static.load
    static.load_inference_model static.program_guard static.save static.save_inference_model
    static.save_training_program static.scope_guard
    static.amp.AutoMixedPrecisionLists static.amp.CustomOpLists static.amp.cast_model_to_fp16
    static.amp.cast_parameters_to_fp16 static.amp.debugging static.amp.decorate static.amp.fp16_guard
    static.nn.batch_norm static.nn.conv2d static.nn.fc
    tensor.reshape utils.unique_name.guard
""".split()


def test_the_lazy_packages_are_found():
    assert {"amp_transpiler", "amp_transpiler.paddle", "amp_transpiler.paddle.static"} <= set(LAZY)


@pytest.mark.parametrize("package", LAZY)
def test_every_name_of_a_package_exists_and_is_listed(package):
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
        assert name in dir(module)


@pytest.mark.parametrize("package", LAZY)
def test_no_function_has_the_name_of_a_module_beside_it(package):
    """Importing `package.name` would put the module in the function's place."""
    module = importlib.import_module(package)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    for name in modules & set(module.__all__):
        assert inspect.ismodule(getattr(module, name))


@pytest.mark.parametrize("package", LAZY)
def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nonsense'"):
        importlib.import_module(package).nonsense  # noqa: B018  # the access is the test


@pytest.mark.parametrize("path", PADDLE)
def test_paddles_namespace(path):
    value = paddle
    for name in path.split("."):
        value = getattr(value, name)
    assert inspect.getdoc(value)


def test_a_star_import_takes_all_names():
    namespace = {}
    exec("from amp_transpiler.paddle.optimizer import *", namespace)
    assert set(paddle.optimizer.__all__) <= set(namespace)


def test_a_name_is_imported_when_it_is_used():
    code = """
import sys
from amp_transpiler import paddle
module = "amp_transpiler.paddle.optimizer.lamb"
print(module in sys.modules, end=" ")
paddle.optimizer.Adam
print(module in sys.modules, end=" ")
paddle.optimizer.Lamb
print(module in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False False True"


def test_without_its_source_a_package_says_so(tmp_path, monkeypatch):
    (tmp_path / "no_source.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("no_source")
    find, _ = lazy_names("no_source")
    monkeypatch.setattr(module.__spec__, "loader", None)
    with pytest.raises(ImportError, match="no_source: its public names are read from its source, which is missing"):
        find("anything")
