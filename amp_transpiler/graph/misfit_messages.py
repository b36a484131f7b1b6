"""Why an operator does not fit its inputs, in words: which inputs, where they were made, what is wrong, the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import onnx_ir as ir

from amp_transpiler.errors import visible
from amp_transpiler.graph.constness import constant_array, constant_of
from amp_transpiler.graph.lines import line_of
from amp_transpiler.graph.origins import scope_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import Signature, signature, type_string

__all__ = ["BROADCASTS", "LEFT_TO_US", "misfit", "reads_of", "wrong_shape"]

BROADCASTS = frozenset({
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod",
    "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip
"""Operators of ONNX's own domain that repeat their inputs along axes of size 1, as numpy does."""

_WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})
LEFT_TO_US = _WINDOWS | {"NegativeLogLikelihoodLoss", "Reshape", "SoftmaxCrossEntropyLoss", "Transpose"}
"""Operators whose misfits ONNX's shape inference accepts."""

_FEW = 8  # elements of a constant that are shown
_MOST = 8  # inputs that are described
_LONGEST = 80  # characters of a name
_OF_TWO = frozenset({"Gemm", "MatMul", "NegativeLogLikelihoodLoss", "Reshape", "SoftmaxCrossEntropyLoss"})
_JARGON = re.compile(r"\[(Shape|Type)InferenceError\] ?|\(op_type:[^)]*\): ?")
_IN_WORDS = {
    "Inconsistent shape in loop output": (
        "a value that it hands from turn to turn changes its shape, while the backward pass stacks it: "
        "give the value its final shape before the loop, or put the loss on a value that does not depend on the loop"
    ),
}  # what ONNX Runtime says -> what it means
_KINDS = {"float": "float32", "double": "float64"}  # names of types in schemas -> in numpy


def misfit(node: ir.Node, opset: int, message: str) -> str:
    """Return what is wrong with a node and its inputs.

    Args:
        node: the node, its inputs typed.
        opset: the version of its domain.
        message: what ONNX or ONNX Runtime says, for what is not known here.
    """
    schema = signature(node.domain, node.op_type, opset)
    why = (None if schema is None else _wrong_types(node, schema)) or wrong_shape(node)
    message = next((words for sign, words in _IN_WORDS.items() if sign in message), message)
    reads = reads_of(node)
    fault = f"fails on {reads}: {_plain(message)}" if why is None else f"does not fit {reads}: {why}"
    origin, name = scope_of(node), visible(node.name or "", _LONGEST)
    return f"{node.op_type} '{name}'{f' ({origin})' if origin else ''} {fault}"


def reads_of(node: ir.Node) -> str:
    """Return the inputs of a node with their types and shapes, and the lines that made them; `no inputs` if none."""
    read = [value for value in node.inputs if value is not None]
    described = [_described(value) for value in read[:_MOST]] or ["no inputs"]
    described += [f"{len(read) - _MOST} more"] if len(read) > _MOST else []
    return described[0] if len(described) == 1 else f"{', '.join(described[:-1])} and {described[-1]}"


def wrong_shape(node: ir.Node) -> str | None:
    """Return why the shapes of a node's inputs do not fit the operator, None where nothing is wrong or known.

    ONNX's shape inference accepts some of these.
    """
    if not is_standard(node):
        return None
    rule = _broadcast if node.op_type in BROADCASTS else _RULES.get(node.op_type)
    if node.op_type in _WINDOWS:
        rule = _window
    needed = 2 if node.op_type in _OF_TWO else 1
    if rule is None or len(node.inputs) < needed or any(v is None or v.shape is None for v in node.inputs[:needed]):
        return None
    return rule(node)


def _described(value: ir.Value) -> str:
    tensor = constant_of(value)
    if tensor is not None and tensor.size <= _FEW:
        return f"the constant {tensor.numpy().tolist()}"
    shape = "of unknown rank" if value.shape is None else f"[{', '.join(map(_size, value.shape))}]"
    line = line_of(value)
    return f"'{_name(value)}' {_dtype_of(value)} {shape}{'' if line is None else f' ({line})'}"


def _name(value: ir.Value) -> str:
    return visible(str(value.name), _LONGEST)


def _dtype(dtype: ir.DataType) -> str:
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def _size(size: int | ir.SymbolicDim) -> str:
    if isinstance(size, int):
        return str(size)
    return "?" if size.value is None else str(size.value)


def _plain(message: str) -> str:
    text = visible(" ".join(_JARGON.sub("", message).split()).rstrip("."))
    return text[:1].lower() + text[1:]


# ---- types ----


def _wrong_types(node: ir.Node, schema: Signature) -> str | None:
    bound: dict[str, ir.Value] = {}
    for index, value in enumerate(node.inputs):
        slot = schema.input(index)
        if value is None or value.type is None or slot is None:
            continue
        allowed = schema.types(slot)
        if type_string(value.type) not in allowed:
            return (
                f"it takes {_types(allowed)} there, and '{_name(value)}' is {_dtype_of(value)}: {_cast(value, allowed)}"
            )
        first = bound.setdefault(slot.type, value) if slot.type in schema.allowed and slot.homogeneous else value
        if first.dtype != value.dtype:
            return (
                f"the types of '{_name(first)}' and '{_name(value)}' must be the same, and are {_dtype_of(first)} and "
                f"{_dtype_of(value)}: cast one of them, as in {_name(value)}.astype('{_dtype_of(first)}')"
            )
    return None


def _types(allowed: frozenset[str]) -> str:
    names = [text[len("tensor(") : -1] for text in sorted(allowed) if text.startswith("tensor(")]
    return ", ".join(_KINDS.get(name, name) for name in names)


def _cast(value: ir.Value, allowed: frozenset[str]) -> str:
    better = next((name for name in ("float", "int64", "bool") if f"tensor({name})" in allowed), "float")
    return f"cast it, as in {_name(value)}.astype('{_KINDS.get(better, better)}')"


def _dtype_of(value: ir.Value) -> str:
    return "of unknown type" if value.dtype is None else _dtype(value.dtype)


# ---- shapes ----


def _broadcast(node: ir.Node) -> str | None:
    values = [value for value in node.inputs if value is not None and value.shape is not None]
    for axis in range(1, max((len(_shape(value)) for value in values), default=0) + 1):
        sizes = [_shape(value)[-axis] for value in values if len(_shape(value)) >= axis]
        numbers = sorted({size for size in sizes if isinstance(size, int) and size != 1})
        if len(numbers) > 1:
            return (
                f"along axis -{axis} their sizes are {_and(numbers)}, which must be equal, or 1 to be repeated: give "
                "them one shape, with reshape or unsqueeze"
            )
    return None


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _matmul(node: ir.Node) -> str | None:
    a, b = (_shape(value) for value in node.inputs[:2])
    if not a or not b:
        return "the product of a scalar is written with *"
    inner, outer = a[-1], b[-1] if len(b) == 1 else b[-2]
    if _differ(inner, outer):
        first, second = (_name(value) for value in node.inputs[:2] if value is not None)
        axis = "the only axis" if len(b) == 1 else "the last axis but one"
        return (
            f"the last axis of '{first}' has {inner} numbers and {axis} of '{second}' {outer}, which must be equal: "
            "transpose one of them, or change a layer's size"
        )
    return None


def _gemm(node: ir.Node) -> str | None:
    flips = [_number(node, "transA", 0), _number(node, "transB", 0)]
    a, b = (_shape(value)[::-1] if flip else _shape(value) for value, flip in zip(node.inputs[:2], flips, strict=True))
    if len(a) == len(b) == 2 and _differ(a[1], b[0]):
        return f"the product is of {_listed(a)} and {_listed(b)}, and {a[1]} must be equal to {b[0]}"
    return None


def _concat(node: ir.Node) -> str | None:
    shapes = [_shape(value) for value in node.inputs if value is not None and value.shape is not None]
    axis = _number(node, "axis", 0)
    if len({len(shape) for shape in shapes}) > 1:
        return f"they have {_and(sorted({len(shape) for shape in shapes}))} axes, and must have the same number"
    for place, sizes in enumerate(zip(*shapes, strict=True)):
        numbers = sorted({size for size in sizes if isinstance(size, int)})
        if place != axis % len(shapes[0]) and len(numbers) > 1:
            return (
                f"they are joined along axis {axis}, and along axis {place} their sizes {_and(numbers)} must be equal"
            )
    return None


def _labels(node: ir.Node) -> str | None:
    scores, labels = (_shape(value) for value in node.inputs[:2])
    wanted = (*scores[:1], *scores[2:])
    if len(wanted) != len(labels) or any(map(_differ, wanted, labels)):
        return f"scores of shape {_listed(scores)} need labels of shape {_listed(wanted)}"
    return None


def _reshape(node: ir.Node) -> str | None:
    data, target = node.inputs[0], node.inputs[1]
    wanted = None if target is None else constant_array(target)
    have = _count(data)
    if wanted is None or data is None or data.shape is None or have is None or _number(node, "allowzero", 0):
        return None
    sizes = [
        _shape(data)[axis] if size == 0 and axis < len(data.shape) else int(size) for axis, size in enumerate(wanted)
    ]
    known = math.prod(size for size in sizes if isinstance(size, int) and size != -1)
    if -1 in sizes and known:
        fits = have % known == 0
    elif -1 in sizes:
        fits = have == 0
    else:
        fits = have == known
    if fits:
        return None
    return f"{have} numbers cannot get the shape {wanted.tolist()}{'' if -1 in sizes else f', which has {known}'}"


def _transpose(node: ir.Node) -> str | None:
    perm, data = node.attributes.get("perm"), node.inputs[0]
    if perm is None or data is None or data.shape is None:
        return None
    order = list(perm.as_ints())
    if sorted(order) == list(range(len(data.shape))):
        return None
    return f"the order of axes {order} must name each of its {len(data.shape)} axes once"


def _window(node: ir.Node) -> str | None:
    """A window that is larger than what it slides over, with its padding."""
    data = node.inputs[0]
    window = _window_sizes(node)
    pad = node.attributes.get("auto_pad")
    if data is None or data.shape is None or window is None or (pad is not None and pad.as_string() != "NOTSET"):
        return None
    sizes = _shape(data)[2:]
    if len(sizes) != len(window):
        return f"its window has {len(window)} axes, and '{_name(data)}' {len(sizes)} beside batch and channels"
    pads = _numbers(node, "pads", [0] * 2 * len(window))
    dilations = _numbers(node, "dilations", [1] * len(window))
    for axis, (size, width, dilation) in enumerate(zip(sizes, window, dilations, strict=True)):
        padded = size + pads[axis] + pads[axis + len(window)] if isinstance(size, int) else None
        reach = (width - 1) * dilation + 1
        if padded is not None and padded < reach:
            return (
                f"along axis {axis + 2} the window is {reach} wide and the data {padded}, its padding counted: make "
                "the window smaller, add padding, or feed larger data"
            )
    return None


def _window_sizes(node: ir.Node) -> list[int] | None:
    if (kernel := node.attributes.get("kernel_shape")) is not None:
        return list(kernel.as_ints())
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = [size for size in _shape(weight)[2:] if isinstance(size, int)]
    return sizes if sizes and len(sizes) == len(_shape(weight)) - 2 else None


_RULES: dict[str, Callable[[ir.Node], str | None]] = {
    "Concat": _concat,
    "Gemm": _gemm,
    "NegativeLogLikelihoodLoss": _labels,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "SoftmaxCrossEntropyLoss": _labels,
    "Transpose": _transpose,
}


def _shape(value: ir.Value | None) -> tuple[int | ir.SymbolicDim, ...]:
    return () if value is None or value.shape is None else tuple(value.shape)


def _differ(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _listed(shape: Sequence[int | ir.SymbolicDim]) -> str:
    return f"[{', '.join(map(_size, shape))}]"


def _count(value: ir.Value | None) -> int | None:
    sizes = _shape(value)
    numbers = [size for size in sizes if isinstance(size, int)]
    return math.prod(numbers) if value is not None and value.shape is not None and len(numbers) == len(sizes) else None


def _number(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _numbers(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return list(default) if attribute is None else list(attribute.as_ints())
