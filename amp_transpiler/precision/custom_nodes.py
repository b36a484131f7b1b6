"""Finds the nodes whose types a user declares, and their low form.

An operator without a schema, such as a plugin of TensorRT, has no low form to look up. What is declared is its form,
and binds: a plugin that was built for float16 takes nothing else, so lists, numerics and saved casts have no say.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.graph.regions import DISABLE_AMP, region_of
from amp_transpiler.graph.walk import PLUGIN
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import opset_of, signature
from amp_transpiler.phrases import counted
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.custom_types import (
    AS_IN_SOURCE,
    PortType,
    PortTypes,
    checked_custom_types,
    port_types,
)

__all__ = ["custom_types_in", "low_form", "mark_plugins"]

_OPTION = "--custom-op-types"
_SHORT = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def custom_types_in(model: ir.Model, declared: Any, low: LowFormat) -> dict[str, PortTypes]:
    """Return the declared types by the full names that the operators have in a model.

    Args:
        model: the program as it was loaded.
        declared: by the user, of operators with or without their domains, as `checked_custom_types` takes it.
        low: the format of the conversion.

    Raises:
        OptionError: the model has no such operator, ONNX or ONNX Runtime has a schema for it, it has more or fewer
            inputs or outputs than types, or a type that the conversion does not have.
    """
    nodes = _by_operator(model)
    resolved: dict[str, PortTypes] = {}
    for name, text in (checked_custom_types(declared) or {}).items():
        types = port_types(name, text)
        if wrong := sorted(types.used - {low.short, "fp32", AS_IN_SOURCE}):
            raise OptionError(
                f"{_OPTION}: {name!r} is declared {wrong[0]}, and the conversion is to {low.name}: a custom operator "
                f"takes {low.short}, fp32, or any"
            )
        for operator in _operators_meant(name, model, nodes):
            _check_counts(types, operator, nodes[operator])
            resolved[operator] = types
    return resolved


def mark_plugins(model: ir.Model, operators: Collection[str]) -> None:
    """Mark the nodes of custom operators that are in ONNX's own domain, as plugins of TensorRT may be.

    ONNX has no such operator, so `onnx.checker` must not be asked about it, and no opset changes it.

    Args:
        model: the program as it was loaded.
        operators: full names of operators whose types are declared.
    """
    for operator, nodes in _by_operator(model).items():
        if operator in operators and is_standard(nodes[0]):
            for node in nodes:
                node.meta[PLUGIN] = True


def _by_operator(model: ir.Model) -> dict[str, list[ir.Node]]:
    nodes: dict[str, list[ir.Node]] = {}
    functions = (function.all_nodes() for function in model.functions.values())
    for node in itertools.chain(model.graph.all_nodes(), *functions):
        nodes.setdefault(operator_name(node), []).append(node)
    return nodes


def _operators_meant(name: str, model: ir.Model, nodes: Mapping[str, list[ir.Node]]) -> list[str]:
    """Return the operators of the model that a name with or without a domain stands for."""
    bodies = {(function.domain, function.name) for function in model.functions.values()}
    custom = [operator for operator, (node, *_) in nodes.items() if not _has_definition(model, node, bodies)]
    meant = [operator for operator in custom if name in (operator, nodes[operator][0].op_type)]
    if meant:
        return meant
    if any(name in (operator, node.op_type) for operator, (node, *_) in nodes.items()):
        raise OptionError(
            f"{_OPTION}: {name!r} has a schema or a body, which says what its types may be: list it with --white or "
            "--black"
        )
    every = ", ".join(sorted(custom)) or "none"
    raise OptionError(
        f"{_OPTION}: the model has no operator {name!r}{did_you_mean(name, custom)}; those without a schema: {every}"
    )


def _has_definition(model: ir.Model, node: ir.Node, bodies: set[tuple[str, str]]) -> bool:
    if (node.domain, node.op_type) in bodies:
        return True
    return signature(node.domain, node.op_type, opset_of(model, node.domain)) is not None


def _check_counts(types: PortTypes, operator: str, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        for which, listed, values in (("input", types.inputs, node.inputs), ("output", types.outputs, node.outputs)):
            if listed is not None and len(listed) != len(values):
                raise OptionError(
                    f"{_OPTION}: types of {operator!r} are for {counted(len(listed), which)}, and node '{node.name}' "
                    f"has {len(values)}"
                )


def low_form(node: ir.Node, types: PortTypes) -> LowForm:
    """Return the inputs and outputs of a node that become low; there may be none.

    Args:
        node: a node of a typed program.
        types: what is declared of its operator.

    Raises:
        OptionError: a port is no float32 tensor, or the node is to stay as it is.
    """
    which = f"{_OPTION}: node '{node.name}' ({operator_name(node)})"
    form = LowForm(
        frozenset(_low_ports(f"{which}: input", node.inputs, types.inputs, types.every)),
        frozenset(_low_ports(f"{which}: output", node.outputs, types.outputs, types.every)),
    )
    if (form.inputs or form.outputs) and DISABLE_AMP in region_of(node):
        raise OptionError(f"{which} is inside a disable_amp region as well, which keeps it as it is: drop one")
    return form


def _low_ports(
    port: str, values: Sequence[ir.Value | None], listed: tuple[PortType, ...] | None, every: PortType
) -> Iterator[int]:
    for index, value in enumerate(values):
        declared = every if listed is None else listed[index]
        if value is None or declared == AS_IN_SOURCE:
            continue
        if value.type is None:
            raise OptionError(
                f"{port} {index} '{value.name}' is declared {declared}, and the model does not say its type: add it to "
                "value_info"
            )
        if is_float32(value):
            if declared != "fp32":
                yield index
        elif listed is not None and _short_type(value) != declared:
            raise OptionError(
                f"{port} {index} '{value.name}' is declared {declared}, and is {_short_type(value)} in the model: "
                "write any, or correct it"
            )


def _short_type(value: ir.Value) -> str:
    name = "no tensor" if not isinstance(value.type, ir.TensorType) else value.type.dtype.name.lower()
    return _SHORT.get(name, name)
