"""The form of every node against its operator's schema: counts, required attributes, attribute types, bodies.

Everything after it may take for granted that a Cast has an input and a Loop a body. ONNX Runtime refuses the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError, visible
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.dtype_attributes import dtype_attribute
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import is_onnx_domain, newest_opset, opset_of, runtime_schema
from amp_transpiler.ops.table import operator_table

__all__ = ["check_forms", "einsum_faults", "equation_fault"]


def check_forms(model: ir.Model, name: str) -> None:
    """Refuse a model with a node that its operator's schema does not allow, whatever its types.

    Args:
        model: a model without calls of its own functions.
        name: its path, for the message.

    Raises:
        ModelError: naming the node and what is wrong.
    """
    fine: set[tuple[str, str, int, int]] = set()  # operator, inputs, outputs of nodes with nothing else to check
    for scope in scopes(model):
        for node in scope.graph:
            kind = (node.domain, node.op_type, len(node.inputs), len(node.outputs))
            if kind in fine and not node.attributes.data and None not in node.inputs:
                continue
            fault = next(_faults(node, opset_of(model, node.domain)), "")
            if fault:
                where = f" in {scope.path}" if scope.path else ""
                words = f"{visible(node.op_type, 60)} '{visible(node.name or _first_output(node), 60)}'"
                raise ModelError(visible(f"{visible(name, 120)}: the model is invalid: {words}{where} {fault}"))
            if not node.attributes.data and None not in node.inputs:
                fine.add(kind)


def _first_output(node: ir.Node) -> str:
    return str(node.outputs[0].name) if node.outputs else ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The part of a schema that a node's form must match."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    single: tuple[str, ...]  # names of the required inputs at the front
    attributes: Mapping[str, tuple[bool, int]]  # name -> required, type


@functools.cache
def _form(domain: str, op_type: str, opset: int) -> _Form | None:
    domain = "" if domain == "ai.onnx" else domain
    schema: Any = None
    if is_onnx_domain(domain):
        with contextlib.suppress(onnx.defs.SchemaError):
            schema = onnx.defs.get_schema(op_type, opset, domain)
    schema = schema or runtime_schema(domain, op_type, opset)
    if schema is None:
        return None
    single = []
    for formal in schema.inputs:
        if "Single" not in str(formal.option):
            break
        single.append(formal.name)
    attributes = {name: (bool(formal.required), int(formal.type)) for name, formal in schema.attributes.items()}
    return _Form(
        (schema.min_input, schema.max_input), (schema.min_output, schema.max_output), tuple(single), attributes
    )


def _faults(node: ir.Node, opset: int) -> Iterator[str]:
    form = _form(node.domain, node.op_type, opset)
    check = _CHECKS.get(node.op_type) if is_standard(node) else None
    if form is None:
        # The table knows operators that an older onnx does not; of opsets that it does not know, it cannot tell.
        is_known = onnx.defs.has(node.op_type) or node.op_type in operator_table()
        if is_standard(node) and is_known and opset <= newest_opset():
            yield f"is no operator of opset {opset}"
        return
    yield from _count_faults("inputs", _present(node.inputs), form.inputs)
    yield from _count_faults("outputs", len(node.outputs), form.outputs, least=0)
    for index, name in enumerate(form.single):
        if index < len(node.inputs) and node.inputs[index] is None:
            yield f"lacks its input {index} ({name})"
    if node.attributes or any(required for required, _ in form.attributes.values()):
        yield from _attribute_faults(node, form)
    if check is not None:
        yield from check(node)


def _present(inputs: Sequence[ir.Value | None]) -> int:
    """Return the number of inputs without omitted ones at the end."""
    count = len(inputs)
    while count and inputs[count - 1] is None:
        count -= 1
    return count


def _count_faults(what: str, count: int, limits: tuple[int, int], least: int | None = None) -> Iterator[str]:
    low, high = limits
    if count < (low if least is None else least) or count > high:
        if low == high:
            expected = str(low)
        elif high < 2**31 - 1:
            expected = f"from {low} to {high}"
        else:
            expected = f"at least {low}"
        yield f"has {count} {what}, expected {expected}"


def _attribute_faults(node: ir.Node, form: _Form) -> Iterator[str]:
    for name, (required, kind) in form.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            if required:
                yield f"lacks its attribute '{name}'"
        elif attribute.is_ref():
            yield f"has an attribute '{name}' that refers to one of a function, but is in none"
        elif kind and attribute.type.value != kind:
            yield f"has an attribute '{name}' of type {attribute.type.name}, expected {ir.AttributeType(kind).name}"
        elif attribute.value is None:
            yield f"has an attribute '{name}' without a value"
        elif attribute.type in _TEXTS and node.op_type != "Constant" and not _is_text(attribute.value):
            yield f"has an attribute '{name}' that is not UTF-8"
    rule = dtype_attribute(node)
    dtype = node.attributes.get(rule.attribute) if rule is not None and not rule.holds_tensor else None
    if dtype is None or dtype.type != ir.AttributeType.INT:
        return
    if dtype.value not in _DTYPES or (not dtype.value and form.attributes[dtype.name][0]):
        yield f"has an attribute '{dtype.name}' of {dtype.value}, which is no element type"


_TEXTS = (ir.AttributeType.STRING, ir.AttributeType.STRINGS)


def _is_text(value: object) -> bool:
    """Whether a string, or each of several, is one: `onnx_ir` keeps bytes that are not UTF-8."""
    return all(isinstance(text, str) for text in (value if isinstance(value, (list, tuple)) else (value,)))


_DTYPES = frozenset(dtype.value for dtype in ir.DataType)


def _if_faults(node: ir.Node) -> Iterator[str]:
    for name in ("then_branch", "else_branch"):
        branch = node.attributes[name].as_graph()
        if len(branch.outputs) != len(node.outputs):
            yield f"has {len(node.outputs)} outputs, its {name} {len(branch.outputs)}"
        if branch.inputs:
            count = len(branch.inputs)
            yield f"has an attribute '{name}' with {count} inputs, expected none: a branch reads the enclosing graph"


def _loop_faults(node: ir.Node) -> Iterator[str]:
    body = node.attributes["body"].as_graph()
    states = max(0, len(node.inputs) - 2)
    if len(body.inputs) != states + 2:
        yield f"has {len(node.inputs)} inputs, its body {len(body.inputs)}, expected {states + 2}"
    if len(body.outputs) != len(node.outputs) + 1 or len(node.outputs) < states:
        yield f"has {len(node.outputs)} outputs and {states} states, its body {len(body.outputs)} outputs"
    elif _never_ends(node, body):
        yield "never ends: it has no trip count, and its condition is always true"


def _never_ends(node: ir.Node, body: ir.Graph) -> bool:
    """Whether a Loop runs for ever once it starts: ONNX Runtime does not stop it, so no result could be compared."""
    count, first = (*node.inputs, None, None)[:2]
    if count is not None:
        return False
    start = True if first is None else constant_array(first)
    condition = body.outputs[0]
    while (producer := condition.producer()) is not None and producer.op_type == "Identity" and is_standard(producer):
        condition = producer.inputs[0] or condition
    if condition is body.inputs[1]:
        return start is not None and bool(np.all(start))
    again = constant_array(condition)
    return again is not None and bool(np.all(again)) and (start is None or bool(np.all(start)))


def _scan_faults(node: ir.Node) -> Iterator[str]:
    body, scans = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
    if not 0 < scans <= len(body.inputs):
        yield f"has an attribute 'num_scan_inputs' of {scans}, its body {len(body.inputs)} inputs"
    if len(node.inputs) - len(body.inputs) not in (0, 1):  # 1 at opset 8, which has sequence_lens in front
        yield f"has {len(node.inputs)} inputs, its body {len(body.inputs)}"
    if len(body.outputs) != len(node.outputs) or len(body.outputs) < len(body.inputs) - scans:
        yield f"has {len(node.outputs)} outputs, its body {len(body.outputs)}"


def _split_faults(node: ir.Node) -> Iterator[str]:
    """Both ONNX's inference and ONNX Runtime end the process where there are more outputs than the attribute says."""
    num_outputs = node.attributes.get("num_outputs")
    if num_outputs is not None and num_outputs.as_int() < len(node.outputs):
        yield f"has an attribute 'num_outputs' of {num_outputs.as_int()}, but {len(node.outputs)} outputs"


def _transpose_faults(node: ir.Node) -> Iterator[str]:
    order = list(node.attributes.get_ints("perm", ()))
    if sorted(order) != list(range(len(order))):
        yield f"has an attribute 'perm' of {order}, expected each axis from 0 on, once"


_TERM = r"[A-Za-z]*(?:\.{3})?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")


def equation_fault(equation: str) -> str:
    """Return what is wrong with the form of an Einsum's equation; empty if nothing is.

    ONNX's shape inference, and with it `onnx.checker`, never ends on one of another form.
    """
    if _EQUATION.fullmatch(equation.replace(" ", "")):
        return ""
    return f"the equation '{equation}' is no list of terms such as 'ij,...jk->...ik': letters, and '...' once a term"


def einsum_faults(node: ir.Node) -> Iterator[str]:
    """Yield what is wrong with the equation of an Einsum."""
    equation = node.attributes.get("equation")
    if (
        equation is not None
        and equation.type == ir.AttributeType.STRING
        and (fault := equation_fault(equation.as_string()))
    ):
        yield f"is not valid: {fault}"


_CHECKS: dict[str, Callable[[ir.Node], Iterator[str]]] = {
    "Einsum": einsum_faults,
    "If": _if_faults,
    "Loop": _loop_faults,
    "Scan": _scan_faults,
    "Split": _split_faults,
    "Transpose": _transpose_faults,
}
"""Operators that need more than their schema's counts and types."""
