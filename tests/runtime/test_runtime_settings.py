"""The table of what ONNX Runtime is told, held to the source: nothing is set that has no row, and the reverse."""

from __future__ import annotations

import ast
import importlib
import pathlib
from collections.abc import Iterator

import pytest

import amp_transpiler
from amp_transpiler.runtime import ort, shared_memory
from amp_transpiler.runtime.provider_options import CUDA_OPTIONS, H100, REFUSED_OPTIONS, Evidence
from amp_transpiler.runtime.recommended_options import OPTIMIZERS
from tests.runtime.onnxruntime_settings import RUNTIME_SETTINGS

PACKAGE = pathlib.Path(amp_transpiler.__file__).parent
RUNS = PACKAGE.parent / "docs" / "benchmarks" / "gpu"
ENTRIES = {"add_session_config_entry": "session key", "add_run_config_entry": "run key"}
FILES = sorted(PACKAGE.rglob("*.py"))


def settings_of(path: pathlib.Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and name of what a file of the package tells ONNX Runtime by calls and assignments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENTRIES:
            assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a name that no table can have"
            yield ENTRIES[node.func.attr], node.args[0].value
        if isinstance(node, ast.FunctionDef) and node.name == "options" and "SessionOptions()" in ast.unparse(node):
            yield from (("session option", name) for name in attributes_set(node))
        if isinstance(node, ast.Assign):
            yield from (("environment", name) for target in node.targets for name in environment(path, target))


def attributes_set(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            for part in target.elts if isinstance(target, ast.Tuple) else (target,):
                if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "options":
                    yield part.attr


def environment(path: pathlib.Path, target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "os.environ":
        name = target.slice
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        yield (
            name.value
            if isinstance(name, ast.Constant)
            else getattr(importlib.import_module(module), ast.unparse(name))
        )


def everything_set() -> set[tuple[str, str]]:
    told = {row for path in FILES for row in settings_of(path, path.read_text(encoding="utf-8"))}
    optimizers = [names for constant, names in vars(ort).items() if constant.endswith("_OPTIMIZERS")]
    told |= {("optimizer", name) for names in (*optimizers, OPTIMIZERS) for name in names}
    return told | {("arena", name) for name in shared_memory._ARENA}


@pytest.mark.slow
def test_the_table_has_a_row_for_everything_that_is_set_and_no_other():
    assert {(row.kind, row.name) for row in RUNTIME_SETTINGS} == everything_set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('o.add_session_config_entry("a.b", "1")', {("session key", "a.b")}),
        ('def f():\n    o.add_run_config_entry("c", x)', {("run key", "c")}),
        ('os.environ["ORT_X"] = "1"', {("environment", "ORT_X")}),
        ("def options(self):\n    options = ort.SessionOptions()\n    options.a, options.b = 1, 2",
         {("session option", "a"), ("session option", "b")}),
        ("options.c = 1", set()),
    ],
)  # fmt: skip
def test_what_the_source_is_read_for(text, expected):
    assert set(settings_of(PACKAGE / "telemetry.py", text)) == expected


def evidence() -> Iterator[tuple[str, Evidence]]:
    for row in (*CUDA_OPTIONS, *REFUSED_OPTIONS, *RUNTIME_SETTINGS):
        if row.evidence is not None:
            yield row.name, row.evidence


@pytest.mark.parametrize(("name", "seen"), list(evidence()), ids=[name for name, _ in evidence()])
def test_evidence_names_a_run_that_is_there(name, seen):
    run = RUNS / seen.run
    assert run.is_file(), f"{name}: {run} is not in the repository"
    first = run.read_text(encoding="utf-8").splitlines()[0]
    assert seen.device in first
    assert (PACKAGE.parent / seen.command.split()[1]).is_file(), f"{name}: {seen.command}"
    assert str(seen).startswith(f"{seen.device}, {seen.versions}: ")


def test_what_changes_a_session_on_a_device_has_evidence():
    silent = {"environment", "session option", "session key", "optimizer"}
    bare = [row for row in RUNTIME_SETTINGS if row.evidence is None and "on a device" in row.sessions]
    assert {row.kind for row in bare} <= silent
    assert {row.name for row in bare} == {
        "session.record_ep_graph_assignment_info",
        "intra_op_num_threads",
        "GatherSliceToSplitFusion",  # the same copies
        "ReshapeFusion",  # views
        "TransposeOptimizer",  # where numbers lie, and when
    }, "each of these changes nothing of what a device computes"
    assert all(row.why for row in RUNTIME_SETTINGS)
    assert isinstance(H100("seen"), Evidence)
