"""Measures in which precision a GPU's float16 and bfloat16 kernels accumulate.

Each truth is a graph of one operator whose result tells the two apart. Inputs are rounded to the low format first, so
that an exact computation is known; a kernel that accumulates in float32 is wrong by the final rounding alone, half a
unit in the last place, one that accumulates in the low format by many, and it overflows where a partial sum leaves the
format's range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from amp_transpiler.graph.dtypes import LowFormat, low_format
from amp_transpiler.runtime.ort import error_text

OPSET, IR_VERSION = 21, 10
OPSETS = {"Conv": 22}  # the first at which it takes bfloat16
WIDE_ULPS = 1.0  # half a unit of the final rounding, and as much for float32's own error where sums are long
Arrays = dict[str, np.ndarray]
Run = Callable[[onnx.ModelProto, Arrays], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Truth:
    """One operator: its attributes, inputs (float64, to be rounded), and the exact result of the rounded ones."""

    question: str
    op: str
    inputs: Callable[[np.random.Generator], Arrays]
    exact: Callable[..., np.ndarray]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    integer_inputs: Arrays = dataclasses.field(default_factory=dict)
    allowed_ulps: float = WIDE_ULPS


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The measured behaviour of a kernel.

    Attributes:
        accumulates_in: `float32` (or wider), the low format's name, or `unknown: REASON`.
        ulps: the largest error in units in the last place of the low format; infinite if the result is not finite.
        survives_range: whether partial results beyond the format's range do no harm; None where there are none.
    """

    question: str
    dtype: str
    accumulates_in: str
    ulps: float | None = None
    survives_range: bool | None = None


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias)


def _conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nchw,mchw->nm", x, w)[:, :, None, None])


def _gemm_inputs(rng: np.random.Generator) -> Arrays:
    return {"a": rng.uniform(0.5, 1, (64, 8192)) / 16, "b": rng.uniform(0.5, 1, (8192, 64)) / 16}


def _rows(rng: np.random.Generator) -> Arrays:
    return {"x": rng.uniform(0.5, 1, (64, 8192))}


def _conv_inputs(rng: np.random.Generator) -> Arrays:
    return {"x": rng.uniform(0.5, 1, (4, 512, 3, 3)) / 8, "w": rng.uniform(0.5, 1, (32, 512, 3, 3)) / 8}


def _norm_inputs(rng: np.random.Generator) -> Arrays:
    # Squares around 1e5: a variance in float16 overflows.
    return {
        "x": rng.uniform(-600, 600, (64, 1024)),
        "scale": rng.uniform(0.5, 1.5, 1024),
        "bias": rng.uniform(4, 5, 1024),  # keeps results away from zero, where an ulp means nothing
    }


AXIS = {"axes": np.array([1], np.int64)}
TRUTHS = (
    Truth("GEMM (MatMul, K = 8192)", "MatMul", _gemm_inputs, np.matmul),
    Truth("Conv (512 x 3 x 3)", "Conv", _conv_inputs, _conv),
    Truth("ReduceSum of 8192", "ReduceSum", _rows, lambda x: x.sum(1), {"keepdims": 0}, AXIS),
    Truth("ReduceMean of 8192", "ReduceMean", _rows, lambda x: x.mean(1), {"keepdims": 0}, AXIS),
    Truth(
        "Softmax of 8192",
        "Softmax",
        lambda rng: {"x": rng.uniform(-4, 4, (64, 8192))},
        _softmax,
        {"axis": -1},
        allowed_ulps=2.0,  # exp in float32 and a division besides the sum
    ),
    Truth("LayerNormalization of 1024 values up to 600", "LayerNormalization", _norm_inputs, _layer_norm, {"axis": -1}),
)
# Partial results beyond 65504 whose sum is small, in float16 alone: does it come out, or as infinity or NaN?
RANGE_TRUTHS: dict[str, Arrays] = {
    "MatMul": {
        "a": np.full((16, 64), 300.0),
        "b": np.repeat(np.array([300.0, -300.0]), 32)[:, None] * np.ones((64, 16)),
    },
    "ReduceSum": {"x": np.repeat(np.array([60000.0, -60000.0]), 32)[None, :] * np.ones((16, 64))},
}


def model(truth: Truth, arrays: Arrays, low: LowFormat) -> onnx.ModelProto:
    """Return the graph of the one operator, all in the low format."""
    inputs = [helper.make_tensor_value_info(name, int(low.dtype), value.shape) for name, value in arrays.items()]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in truth.integer_inputs.items()]
    node = helper.make_node(truth.op, [*arrays, *truth.integer_inputs], ["y"], name=truth.op, **truth.attributes)
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = int(low.dtype)
    graph = helper.make_graph([node], truth.op, inputs, [output], constants)
    opset = helper.make_opsetid("", OPSETS.get(truth.op, OPSET))
    return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)


def error_in_ulps(result: np.ndarray, exact: np.ndarray, low: LowFormat) -> float:
    """Return the largest error in units in the last place that `low` has at the exact value."""
    wide = np.asarray(result, dtype=np.float64).reshape(exact.shape)
    if not np.isfinite(wide).all():
        return float("inf")
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-14)))
    return float((np.abs(wide - exact) / 2.0 ** (exponent - low.digits + 1)).max())


def judge(truth: Truth, low: LowFormat, run: Run) -> Verdict:
    """Run the graph of `truth` with `run` and say what it shows; a refusal is `unknown`, with its reason."""
    rounded = {name: value.astype(low.numpy) for name, value in truth.inputs(np.random.default_rng(0)).items()}
    try:
        result = run(model(truth, rounded, low), rounded)
        survives = None
        if low.name == "float16" and truth.op in RANGE_TRUTHS:
            extreme = {name: value.astype(low.numpy) for name, value in RANGE_TRUTHS[truth.op].items()}
            survives = bool(np.isfinite(run(model(truth, extreme, low), extreme).astype(np.float64)).all())
    except Exception as error:  # noqa: BLE001  no kernel, or another refusal: an answer as well
        return Verdict(truth.question, low.name, f"unknown: {error_text(error, 160)}")
    exact = truth.exact(*(value.astype(np.float64) for value in rounded.values()))
    ulps = error_in_ulps(result, exact, low)
    return Verdict(
        truth.question, low.name, "float32" if ulps <= truth.allowed_ulps else low.name, round(ulps, 3), survives
    )


def all_truths(run: Run) -> list[Verdict]:
    """Return a verdict for every truth in both formats."""
    return [judge(truth, low_format(name), run) for name in ("float16", "bfloat16") for truth in TRUTHS]


def float32_gemm_error(run: Run) -> float:
    """Return the largest relative error of a float32 MatMul: above 1e-5 it is computed in TF32 (10 bits)."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, (256, 256)).astype(np.float32) for _ in range(2))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (256, 256)) for name in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "gemm", infos[:2], infos[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float((np.abs(run(proto, {"a": a, "b": b}) - exact) / exact).max())
