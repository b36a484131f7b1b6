"""Lists the kernels that ONNX Runtime's CUDA provider launches for an operator, and what each goes through.

Rows by operator: elementwise kernels by how their operands lie, reductions in one pass or two, moves, and for products
and convolutions the kernels around them. An operator without a row is one kernel that no price list knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from amp_transpiler.cost.call import Call
from amp_transpiler.cost.operators import FLOPS, LAUNCHES
from amp_transpiler.cost.products import convolved, multiplied, multiplied_by_few_bits
from amp_transpiler.cost.work import Work
from amp_transpiler.graph.constness import constant_of

__all__ = ["launched"]

Rule: TypeAlias = Callable[[Call], list[Work]]

LOW = frozenset({"float16", "bfloat16"})
LONGEST_OF_A_WARP = 1024  # elements of a row that one warp takes the softmax of
MANY_ROWS = 8 * 132  # as many blocks as the processors of an H100 hold at once


def launched(call: Call, scanned: int, flops: int) -> tuple[Work, ...]:
    """Return the kernels of an operator.

    Args:
        call: the operator, with its operands.
        scanned: bytes that it reads and writes, for a kernel without a price.
        flops: operations of its products, for the same.
    """
    rule = _RULES.get(call.op)
    if rule is None:
        return (Work(call.op, call.rate if flops else call.format, call.elements, flops=flops, bytes=scanned),)
    return tuple(rule(call))


# ---- element by element ----
def _unary(call: Call) -> list[Work]:
    return [call.work(_PRICED_AS.get(call.op, "Unary"))]


def _cast(call: Call) -> list[Work]:
    target = call.format_of(call.output)
    if call.format == "float32" and target in LOW:
        return [call.work("Cast to 16 bits", computes=target)]
    if call.format in LOW and target == "float32":
        return [call.work("Cast to 32 bits")]
    return [call.work("Cast to bool" if target == "bool" else f"Cast to {target}")]


def _binary(call: Call) -> list[Work]:
    shapes = [call.shape(index) for index in range(len(call.inputs))]
    result = call.sizes.shape(call.output) or ()
    if len({math.prod(shape) for shape in shapes}) == 1:
        return [call.work("Two operands")]
    if any(math.prod(shape) == 1 for shape in shapes):
        return [call.work("One number")]
    small = min(shapes, key=math.prod)
    return [call.work("A number a row" if small and small[-1] == 1 and result[-1:] != (1,) else "A row for all")]


def _variadic(call: Call) -> list[Work]:
    """Add two operands at a time, or up to eight where all have one shape."""
    count = len(call.inputs)
    if count <= 2:
        return _binary(call) if count == 2 else []
    if len({call.shape(index) for index in range(count)}) > 1:
        return [call.work("Two operands", count=count - 1)]
    return [call.work("Many operands", elements=count * call.elements)]


def _where(call: Call) -> list[Work]:
    is_simple = len(call.shape(0)) == 0 or call.sizes.elements(call.inputs[0]) == call.elements
    return [call.work("Where" if is_simple else "Where a row", computes=call.format_of(call.output))]


# ---- rows ----
def _normalized(call: Call) -> list[Work]:
    """Give each row one block of threads: many rows hide each other's waits."""
    shape = call.shape(0)
    axis = call.attribute("axis", -1) % max(1, len(shape))
    rows, row = math.prod(shape[:axis]), math.prod(shape[axis:])
    kernel = "LayerNormalization of many rows" if rows >= MANY_ROWS else "LayerNormalization"
    return [call.work(kernel, elements=rows * row, steps=row)]


def _softmax(call: Call) -> list[Work]:
    shape = call.shape(0)
    row = shape[call.attribute("axis", -1) % len(shape)] if shape else 1
    size = "short" if row <= LONGEST_OF_A_WARP else "long"
    return [call.work(f"{call.op} of {size} rows", steps=row)]


def _batch_norm(call: Call) -> list[Work]:
    """Cast scale, bias and both statistics of a low format to float32 first."""
    channels = call.sizes.elements(call.inputs[1]) if len(call.inputs) > 1 else 0
    casts = [call.work("Cast to 32 bits", elements=channels, count=4)] if call.format in LOW else []
    return [*casts, call.work("BatchNormalization")]


# ---- reductions ----
def _reduced(call: Call) -> list[Work]:
    """Sum fast over leading or trailing dimensions; else cuDNN reduces, which writes float32 first."""
    shape = call.shape(0)
    axes = _axes(call, len(shape))
    remaining = [index for index, size in enumerate(shape) if index not in axes and size != 1]
    reduced = [index for index in sorted(axes) if shape[index] != 1]
    length, elements = math.prod(shape[index] for index in reduced), math.prod(shape)
    is_fast = not remaining or not reduced or max(remaining) < min(reduced) or max(reduced) < min(remaining)
    if call.op not in ("ReduceSum", "ReduceMean") or not is_fast:
        casts = [call.work("Workspace in float32", elements=elements)] if call.format in LOW else []
        kernel = (
            "cuDNN reduction" if remaining else "cuDNN reduction to one number"
        )  # no device was measured with one row
        return [*casts, call.work(kernel, elements=elements, steps=length)]
    leading = bool(remaining) and bool(reduced) and max(reduced) < min(remaining)
    works = [call.work("Sum of rows" if leading else "Sum of columns", elements=elements)]
    if call.op == "ReduceMean":
        works.append(call.work("One number"))
    return works


def _axes(call: Call, rank: int) -> set[int]:
    constant = constant_of(call.inputs[1]) if len(call.inputs) > 1 else None
    listed = call.node.attributes.get_ints("axes", ()) if constant is None else constant.numpy().reshape(-1).tolist()
    return {axis % rank for axis in listed} if listed and rank else set(range(rank))


# ---- moves ----
def _moved(kernel: str) -> Rule:
    return lambda call: [call.work(kernel)]


def _split(call: Call) -> list[Work]:
    return [call.work("Split", elements=math.prod(call.shape(0)))]


def _gather(call: Call) -> list[Work]:
    return [call.work("Gather")]


def _scatter(call: Call) -> list[Work]:
    """Let one thread walk a row of the updates."""
    updates, indices = call.shape(2), call.shape(1)
    row = math.prod(updates[len(indices) - 1 :]) if call.op == "ScatterND" and indices else 1
    return [call.work("Scatter", elements=math.prod(updates), steps=row)]


def _skip_norm(call: Call) -> list[Work]:
    row = call.shape(0)[-1:] or (1,)
    return [call.work("SkipLayerNormalization", steps=row[0])]


# ---- products ----
def _gemm(call: Call) -> list[Work]:
    bias = call.sizes.elements(call.inputs[2]) if len(call.inputs) > 2 else 0
    spread = [call.work("BroadcastBias")] if call.biased or (bias and bias != call.elements) else []
    return [*spread, *multiplied(call)]


def _cached_attention(call: Call) -> list[Work]:
    """Attend in one kernel; what rotates, appends and finds lengths is little, and no price list knows it."""
    flops, size = FLOPS[call.op](call.node, call.sizes), sum(map(call.sizes.bytes, (*call.inputs, *call.node.outputs)))
    beside = Work(
        f"{call.op}, beside it", call.format, call.elements, count=LAUNCHES[call.op](call.node, call.sizes) - 1
    )
    return [Work(call.op, call.rate, call.elements, flops=flops, bytes=size), beside]


_PRICED_AS: Mapping[str, str] = MappingProxyType({"Relu": "Relu", "Erf": "Erf", "Gelu": "Gelu", "BiasGelu": "Gelu"})
_UNARY = (
    *("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "FastGelu", "Floor", "Gelu", "HardSigmoid", "IsInf", "IsNaN"),
    *("LeakyRelu", "Log", "Neg", "Not", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin"),
    *("Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "BiasGelu", "HardSwish", "Mish", "Swish", "Clip"),
)
_BINARY = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Mul", "Or", "Pow"),
    *("PRelu", "Sub", "Xor"),
)
_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
)
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(_UNARY, _unary),
        **dict.fromkeys(_BINARY, _binary),
        **dict.fromkeys(("Sum", "Max", "Min", "Mean"), _variadic),
        "Cast": _cast,
        "Where": _where,
        "LayerNormalization": _normalized,
        "SimplifiedLayerNormalization": _normalized,
        "RMSNormalization": _normalized,
        "SkipLayerNormalization": _skip_norm,
        "SkipSimplifiedLayerNormalization": _skip_norm,
        "Softmax": _softmax,
        "LogSoftmax": _softmax,
        "BiasSoftmax": _softmax,
        "BatchNormalization": _batch_norm,
        **dict.fromkeys(_REDUCTIONS, _reduced),
        "Transpose": _moved("Transpose"),
        **dict.fromkeys(("Concat", "Expand", "Pad", "Slice", "Tile"), _moved("Copy of pieces")),
        "Split": _split,
        **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
        **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
        "HyperConnectionPostMix": _moved("HyperConnectionPostMix"),
        **dict.fromkeys(("MatMul", "FusedMatMul", "TransposeMatMul"), multiplied),
        "GroupQueryAttention": _cached_attention,
        "MatMulNBits": multiplied_by_few_bits,
        "Gemm": _gemm,
        "FusedGemm": _gemm,
        **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv"), convolved),
    }
)
