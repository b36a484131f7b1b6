"""Which of Paddle's names the tables of tests use: rows beside torch, with a gradient or without one."""

from __future__ import annotations

import functools
import importlib
import inspect
import pathlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp_transpiler.paddle.tensor.methods import METHODS, PROPERTIES

__all__ = ["HERE", "Used", "found", "used_by_tables"]

HERE = pathlib.Path(__file__).parent
MODULES = ["", "nn.functional", "linalg", "nn"]


def found(section: str, name: str) -> Any:
    """Return what the package hands out under a name of a section of the pages, or None."""
    if section == "Tensor":
        return METHODS.get(name, PROPERTIES.get(name))
    home = "" if section in ("", "paddle") else f".{section}"
    return getattr(importlib.import_module(f"amp_transpiler.paddle{home}"), name, None)


def _itself(thing: Any) -> Any:
    """Return what a decorated function decorates: a name and its alias are one."""
    return inspect.unwrap(thing) if callable(thing) else thing


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield constant


def _used(function: Any, seen: set[int]) -> Iterator[Any]:
    """Yield functions and names that a function of a test uses, by way of helpers of the tests too."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from _used(function.func, seen)
        for source in (*function.args, *function.keywords.values()):
            yield from _used(source, seen)
    elif isinstance(function, types.FunctionType) and function.__module__.startswith("tests."):
        yield from _names_in(function.__code__)
        source = (*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ()))
        helpers = (function.__globals__.get(name) for name in function.__code__.co_names)
        for other in (*source, *(h for h in helpers if isinstance(h, types.FunctionType))):
            yield from _used(other, seen)
    elif isinstance(function, str) or callable(function):
        yield function


class Used:
    """Functions and names that rows use."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.things: set[Any] = set()

    def add(self, function: Callable[..., Any]) -> None:
        """Note what a row's function uses."""
        for used in _used(function, set()):
            if not isinstance(used, str):
                self.things.add(_itself(used))
                continue
            self.names.add(used)
            alike = (found(module, used) for module in (*MODULES, "Tensor"))
            self.things |= {_itself(thing) for thing in alike if callable(thing)}

    def has(self, section: str, name: str) -> bool:
        """Return whether a row uses what a name stands for: itself, an alias, or the function that a layer calls."""
        thing = found(section, name)
        if _itself(thing) in self.things if callable(thing) else name in self.names:
            return True
        function = getattr(thing, "function", None)
        return isinstance(function, str) and self.has("nn.functional", function)


@functools.cache
def used_by_tables() -> tuple[Used, Used]:
    """Return what rows use for values, and what those use whose gradients are compared."""
    values, gradients = Used(), Used()
    for path in sorted(HERE.rglob("test_*.py")):
        parts = path.relative_to(HERE.parent.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts))
        for table in ("CASES", "LAYERS"):
            rows = getattr(module, table, None)
            for row in rows.values() if isinstance(rows, Mapping) else ():
                if not hasattr(row, "ours"):
                    continue
                values.add(row.ours)
                floats = any(not hasattr(x, "dtype") or x.dtype.kind == "f" for x in row.inputs)
                if floats and getattr(row, "differentiable", True):
                    gradients.add(row.ours)
    return values, gradients
