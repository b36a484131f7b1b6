"""onnx_ir is imported without sympy, and computes with it all the same. Each row runs in a process of its own."""

import subprocess
import sys

import pytest

START = "import sys, amp_transpiler, onnx_ir as ir\n"


def printed(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "",
        "ir.SymbolicDim('n') == ir.SymbolicDim('n')",
        "ir.Shape([1, 'n', None]) == ir.Shape([1, 'n', None])",
        "str(ir.Shape(['n', 'm + 1'])), hash(ir.SymbolicDim('n'))",
        "import amp_transpiler as amp; amp.transpile, amp.Session, amp.load, amp.save, amp.cast_model_to_fp16",
    ],
)
def test_sympy_is_not_imported(code):
    assert printed(f"{START}{code}\nprint('sympy' in sys.modules)") == ["False"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("ir.SymbolicDim('n') + 1", "n+1"),
        ("ir.SymbolicDim('n') * 2 - ir.SymbolicDim('m')", "-m+2*n"),
        ("(ir.SymbolicDim('n') + 1).evaluate({'n': 3})", "4"),
        ("ir.SymbolicDim('max(n, 4)').evaluate({'n': 3})", "4"),
        ("(ir.SymbolicDim('n') // 2).evaluate({'n': 5})", "2"),
        ("ir.SymbolicDim(__import__('sympy').Symbol('k'))", "k"),
    ],
)
def test_sizes_are_computed_with_sympy(code, value):
    assert "".join(printed(f"{START}print({code})")) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import sympy; print(sympy.__name__, hasattr(sympy, 'Symbol'))",
        "from sympy import Symbol; print(Symbol.__name__, Symbol('a') == Symbol('a'))",
        "import sympy.core; print(sympy.core.__name__.split('.')[0], sympy.core is sys.modules['sympy.core'])",
        "import importlib; print(importlib.import_module('sympy').__spec__.name, True)",
    ],
)
def test_whoever_imports_sympy_has_it(code):
    name, is_so = printed(START + code)
    assert name in {"sympy", "Symbol"}
    assert is_so == "True"


def test_an_expression_of_the_users_own_is_one_of_onnx_ir():
    code = "d = ir.SymbolicDim('n') + 1\nimport sympy\n"
    seen = "print(isinstance(d._expr, sympy.Expr), d == ir.SymbolicDim('n + 1'))"
    assert printed(START + code + seen) == ["True", "True"]


@pytest.mark.parametrize("first", ["sympy", "onnx_ir"])
def test_what_was_imported_before_stays(first):
    code = f"import {first}, amp_transpiler, onnx_ir._core, sympy\nprint(onnx_ir._core.sympy is sympy)"
    assert printed(code) == ["True"]


def test_tools_find_the_source_of_onnx_ir():
    code = "import inspect, onnx_ir._core as c\n"
    seen = "print('import sympy' in inspect.getsource(c), c.__loader__ is c.__spec__.loader)"
    assert printed(START + code + seen) == ["True", "True"]


def test_several_threads_may_compute_first():
    code = """
import concurrent.futures
def size(number):
    return (ir.SymbolicDim('n') + number).evaluate({'n': 1})
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(size, range(32))))
"""
    assert printed(START + code) == [str(sum(range(32)) + 32)]
