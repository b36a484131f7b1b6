"""Metadata that says which function built a node, and what an error of the node means to the user."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.lines import at_line_of, line_of

__all__ = [
    "BUILT_BY_KEY",
    "ONE_ELEMENT_KEY",
    "OPERATOR_KEY",
    "ROUNDS_KEY",
    "built_as",
    "built_by",
    "mark_functions",
    "operator_label",
    "part_of",
    "scope_of",
]

ONE_ELEMENT_KEY = "amp_transpiler.one_element"  # metadata: the error if the first input does not have one element
ROUNDS_KEY = "amp_transpiler.rounds"  # in `meta` of a Cast: it rounds what a reduction of 16 bits computed in float32
BUILT_BY_KEY = "amp_transpiler.built_by"  # metadata: the outermost function of `nn.functional` that built the node
OPERATOR_KEY = "amp_transpiler.operator"  # metadata: which of Paddle's operators the node is a part of, as JSON
_SCOPES = ("pkg.torch.onnx.name_scopes", "namespace")  # where exporters of PyTorch put the module

_function: contextvars.ContextVar[str] = contextvars.ContextVar("amp_transpiler.built_by", default="")

_operator: contextvars.ContextVar[str] = contextvars.ContextVar("amp_transpiler.operator", default="")


def operator_label() -> str:
    """Return the label of the operator that is being built now, or nothing."""
    return _operator.get()


@contextlib.contextmanager
def part_of(
    operator: str, dtype: ir.DataType, inputs: Mapping[str, str] | None = None, **attributes: bool | float | str
) -> Iterator[None]:
    """Mark nodes that are built in this context as one of Paddle's operators, such as the update of a parameter.

    Args:
        operator: Paddle's name (`adamw`, `update_loss_scaling`).
        dtype: the element type that Paddle's statistics count it under.
        inputs: slot (`Param`, `Grad`) -> name of a value.
        attributes: those of Paddle's that are known.
    """
    label = {"type": operator, "dtype": dtype.name, "inputs": dict(inputs or {}), "attributes": attributes}
    token = _operator.set(json.dumps(label))
    try:
        yield
    finally:
        _operator.reset(token)


def built_by() -> str:
    """Return the function that is building nodes now, or nothing."""
    return _function.get()


@contextlib.contextmanager
def built_as(node: ir.Node) -> Iterator[None]:
    """Mark nodes that are built in this context as `node` is: by its function, at its line, such as its gradients."""
    token = _function.set(node.metadata_props.get(BUILT_BY_KEY, ""))
    try:
        with at_line_of(node):
            yield
    finally:
        _function.reset(token)


def mark_functions(module: dict[str, Any], names: Iterable[str]) -> None:
    """Make the functions of a module mark the nodes that they build with their name, unless another one calls them.

    Args:
        module: the module's globals, edited in place.
        names: the module's public names; those that are no functions of its own stay.
    """
    for name in names:
        function = module[name]
        if inspect.isfunction(function) and function.__module__ == module["__name__"]:
            module[name] = _marking(function)


def _marking(function: Any) -> Any:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if _function.get():
            return function(*args, **kwargs)
        token = _function.set(function.__name__)
        try:
            return function(*args, **kwargs)
        finally:
            _function.reset(token)

    return marked


def scope_of(node: ir.Node) -> str:
    """Return the function, line or module that a node comes from, as far as its metadata says."""
    line = line_of(node)
    place = "" if line is None else f"at {line}"
    if (function := node.metadata_props.get(BUILT_BY_KEY)) is not None:
        return f"built by nn.functional.{function} {place}".rstrip()
    if place:
        return place
    scope = next((text for key in _SCOPES if (text := node.metadata_props.get(key))), "")
    return f"in {scope}" if scope else ""
