"""The mutation operators: those of cosmic-ray that apply here, and one of our own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.operators.operator import Example, Operator

__all__ = ["operators"]

# VariableReplacer and VariableInserter want a list of variables. Whether two equal enum members, None or short
# strings are also identical is up to the interpreter, so == and `is` are not exchanged.
_LEFT_OUT = re.compile(r"VariableReplacer|VariableInserter|NoOp|_(Eq|NotEq)_(Is|IsNot)$|_(Is|IsNot)_(?!Is)")


class DropStatement(Operator):  # type: ignore[misc] # cosmic-ray comes without types
    """An operator that replaces a statement by `pass`: a call, a raise, `x[i] = y`, `x.a = y` or `x += y`.

    Not in `__init__`, where anything would notice.
    """

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and _has_only_an_effect(node.children[0]) and not _initializes(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        assert index == 0
        dropped = parso.parse("pass").children[0]
        dropped.prefix = node.children[0].get_first_leaf().prefix
        node.children[0] = dropped
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("f(x)\n", "pass\n"), Example("raise x\n", "pass\n"), Example("x[1] = 2\n", "pass\n"))


def _has_only_an_effect(statement: Any) -> bool:
    if statement.type in {"atom_expr", "raise_stmt"}:
        return True
    if statement.type != "expr_stmt":
        return False
    return bool(statement.children[0].type == "atom_expr" or statement.children[1].type == "operator_augassign")


def _initializes(node: Any) -> bool:
    function = parso.tree.search_ancestor(node, "funcdef")
    return bool(function is not None and function.name.value == "__init__")


def operators() -> dict[str, Operator]:
    """Return every operator by its name."""
    names = [name for name in cosmic_ray.plugins.operator_names() if not _LEFT_OUT.search(name)]
    by_name = {name.partition("/")[2]: cosmic_ray.plugins.get_operator(name)() for name in sorted(names)}
    return by_name | {"DropStatement": DropStatement()}
