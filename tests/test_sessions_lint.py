"""Sessions of ONNX Runtime are opened in one place, which checks their providers and knows all of their options."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "amp_transpiler"

# Name of ONNX Runtime's -> (file, function) that may call it -> why.
ALLOWED = {
    "InferenceSession": {
        ("runtime/ort.py", "create_session"): "the session of a place, by settings",
        ("runtime/ort.py", "create_plain_session"): "the session of a user, with default options, for the check",
        (
            "child_process/foreign/run_model.py",
            "_session",
        ): "for an interpreter without this package",
    },
    "SessionOptions": {
        ("runtime/ort.py", "SessionSettings.options"): "settings in ONNX Runtime's form",
        (
            "child_process/foreign/run_model.py",
            "_session",
        ): "for an interpreter without this package",
    },
}


def uses(tree):
    """Yield the name, the function and the line of each call of a name above, or import of it by itself."""

    def visit(node, place):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = [*place, node.name]
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in ALLOWED:
                yield name, ".".join(place), node.lineno
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in ALLOWED:
                    yield alias.name, "import", node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, place)

    return list(visit(tree, []))


def test_only_these_functions_open_a_session_or_set_its_options():
    by_file = {name: {} for name in ALLOWED}
    for path in sorted(PACKAGE.rglob("*.py")):
        file, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        tree = ast.parse(text if any(name in text for name in ALLOWED) else "")  # parsing all files takes seconds
        for name, function, line in uses(tree):
            by_file[name].setdefault((file, function), f"{file}:{line}")
    for name, rows in ALLOWED.items():
        others = {place: where for place, where in by_file[name].items() if place not in rows}
        assert others == {}, f"{name} here: call runtime.ort's functions, or give the row a reason"
        assert rows.keys() <= by_file[name].keys(), "rows that are out of date"
        assert all(rows.values())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("s = onnxruntime.InferenceSession(m)", [("InferenceSession", "", 1)]),
        ("class A:\n def f(self):\n  return ort.InferenceSession(m)", [("InferenceSession", "A.f", 3)]),
        ("from onnxruntime import InferenceSession as S", [("InferenceSession", "import", 1)]),
        ("def f():\n o = onnxruntime.capi.SessionOptions()", [("SessionOptions", "f", 2)]),
        ("def f(s: onnxruntime.InferenceSession) -> None: ...", []),
    ],
)
def test_what_is_a_use(code, expected):
    assert uses(ast.parse(code)) == expected
