"""The places of a module whose mutants are left out, because no behaviour depends on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

__all__ = ["RULES", "excluded"]

Place = tuple[int, int]  # line (from 1) and column
_LOG = re.compile(r"_?log(ger)?\.(debug|info|warning|error|exception|log)$|warnings\.warn$")
_CACHES = re.compile(r"(functools\.)?(cache|lru_cache|cached_property)\b")
_STATIC = {"overload", "override", "final", "runtime_checkable"}


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
        yield node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.returns
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"cast", "typing.cast"}:
        yield node.args[0]


def _log_calls(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and _LOG.search(ast.unparse(node.func)):
        yield node


def _error_texts(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from node.exc.args
        yield from node.exc.keywords


def _types_only(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield node


def _decorators(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        for decorator in node.decorator_list:
            text = ast.unparse(decorator)
            if text in _STATIC or _CACHES.match(text):
                yield decorator


def _frozen(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.ClassDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("dataclass"):
                yield from (word for word in decorator.keywords if word.arg in {"frozen", "kw_only", "slots"})


def _zip_strict(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        yield from (word for word in node.keywords if word.arg == "strict")


def _exports(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        yield node


# The rule, as the report names it, and where it applies.
RULES: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    "annotations and casts of types": _annotations,
    "log calls": _log_calls,
    "the wording of raised errors": _error_texts,
    "imports for type checkers": _types_only,
    "decorators that cache or that only type checkers read": _decorators,
    "frozen, kw_only and slots of data classes": _frozen,
    "strict of zip, which guards against our own mistakes": _zip_strict,
    "__all__": _exports,
}


def excluded(source: str) -> list[tuple[Place, Place]]:
    """Return the stretches of source text that are left out."""
    lines = source.splitlines()

    def place(line: int, column: int) -> Place:  # ast counts bytes, parso characters
        return line, len(lines[line - 1].encode()[:column].decode())

    spans = []
    for node in ast.walk(ast.parse(source)):
        for part in (part for rule in RULES.values() for part in rule(node)):
            start = place(part.lineno, part.col_offset)  # type: ignore[attr-defined] # all are expressions, statements or keywords
            end = place(part.end_lineno, part.end_col_offset)  # type: ignore[attr-defined]
            if lines[start[0] - 1][: start[1]].endswith("@"):  # a decorator goes with its @
                start = start[0], start[1] - 1
            spans.append((start, end))
    return sorted(spans)
