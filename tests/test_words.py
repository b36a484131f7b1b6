"""Names of values say what they hold: `found`, `made`, `given`, `one`, `own` and `kept` say nothing of it."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("amp_transpiler", "examples", "lab", "scripts", "tests")

WORDS = {"found", "made", "given", "one", "own", "kept"}

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _is_private(name):
    return name.startswith("_") and not name.endswith("__")


def _named(node):
    """Return the name that a node gives to a value, apart from parameters; None if it gives none."""
    match node:
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return node.name
        case ast.alias():
            return node.asname
        case ast.Attribute(ctx=ast.Store()) if _is_private(node.attr):
            return node.attr
    return None


def _parameters(function):
    each = function.args
    return [*each.posonlyargs, *each.args, *each.kwonlyargs, *filter(None, (each.vararg, each.kwarg))]


def empty_names(tree):
    """Yield the line and the name of each value, private function or parameter of one that is named by such a word.

    Fields of classes and parameters of public functions are an interface, which others read by name.
    """

    def visit(node, *, inside):
        # inside: "module", "class", "private" (a private class), or "function".
        for child in ast.iter_child_nodes(node):
            within, is_field = inside, inside in ("class", "private") and isinstance(child, ast.Assign | ast.AnnAssign)
            if isinstance(child, _FUNCTIONS):
                name = getattr(child, "name", "_")
                hidden = inside in ("private", "function") or _is_private(name)
                if hidden and name.strip("_") in WORDS:
                    yield child.lineno, name
                yield from ((each.lineno, each.arg) for each in _parameters(child) if hidden and each.arg in WORDS)
                within = "function"
            elif isinstance(child, ast.ClassDef):
                within = "private" if _is_private(child.name) else "class"
            elif (name := _named(child)) is not None and name.strip("_") in WORDS:
                yield child.lineno, name
            if not is_field:
                yield from visit(child, inside=within)

    return list(visit(tree, inside="module"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_they_hold(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in empty_names(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, f"name these after what they hold (comparisons, rows, match, ...): {wrong}"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def f():\n    found = 1", "found"),
        ("made: int = 1", "made"),
        ("for one in rows: pass", "one"),
        ("rows = [own for own in rows]", "own"),
        ("if (given := read()): pass", "given"),
        ("with opened() as kept: pass", "kept"),
        ("a, (b, *found) = rows", "found"),
        ("found += 1", "found"),
        ("try: pass\nexcept ValueError as found: pass", "found"),
        ("match row:\n    case [one, *_]: pass", "one"),
        ("import numpy as own", "own"),
        ("key = lambda one: one.size", "one"),
        ("def _f(given): pass", "given"),
        ("def _f(*, kept=()): pass", "kept"),
        ("def f():\n    def inner(found): pass", "found"),
        ("class _Run:\n    def run(self, *found): pass", "found"),
        ("class Run:\n    def __init__(self, rows):\n        self._kept = rows", "_kept"),
        ("class Run:\n    def _made(self): pass", "_made"),
        ("class Run:\n    def run(self):\n        found = 1", "found"),
    ],
)
def test_a_word_that_says_nothing_is_seen(code, name):
    assert [word for _, word in empty_names(ast.parse(code))] == [name]


@pytest.mark.parametrize(
    "code",
    [
        "def evidence(self, *, given): pass",
        "class Samples:\n    given: bool = False\n    found = None",
        "row = evidence.given\nrow.found = 1",
        "record = replace(row, found=1)",
        "found_rows = kept_values = foundation = []",
        'text = {"found": 1, "own": 2}',
        "class Spill:\n    def kept(self, outputs): pass",
        "print(found, made)",
    ],
)
def test_interfaces_and_longer_names_are_free(code):
    assert empty_names(ast.parse(code)) == []
