"""Gradients of Gemm, FusedMatMul and Einsum."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff import differentiate
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    relative_error,
    run_gradients,
)

ACROSS = list(itertools.product([0, 1], repeat=2))  # transA, transB
RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def dims(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]" if shape else ""


def text(body: str, inputs: str, dtype: str = "float", result: str | None = None) -> str:
    """A model of one operator; `result` is the shape of its result where ONNX infers none."""
    steps = f"{{ y = {body} }}" if result is None else f"<{dtype}{result} h> {{ h = {body} y = Identity(h) }}"
    return f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g ({inputs}) => ({dtype}[] y) {steps}"""


@pytest.mark.parametrize("across", ACROSS)
@pytest.mark.parametrize("bias", [None, (4,), (1, 4), (2, 1), (2, 4), (1,), ()])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0)])
def test_gemm(across, bias, alpha, beta):
    feeds = {"a": draw(*((3, 2) if across[0] else (2, 3))), "b": draw(*((4, 3) if across[1] else (3, 4)))}
    feeds |= {} if bias is None else {"c": draw(*bias)}
    attributes = f"alpha = {alpha}, beta = {beta}, transA = {across[0]}, transB = {across[1]}"
    inputs = ", ".join(f"float{dims(value.shape)} {name}" for name, value in feeds.items())
    check_by_differences(text(f"Gemm <{attributes}> ({', '.join(feeds)})", inputs), feeds)


def test_gemm_of_a_batch_of_any_size():
    feeds = {"a": draw(5, 3), "b": draw(4, 3), "c": draw(4)}
    check_by_differences(text("Gemm <transB = 1> (a, b, c)", "float[N,3] a, float[4,3] b, float[4] c"), feeds)


@pytest.mark.parametrize("across", ACROSS)
@pytest.mark.parametrize("stacks", [((), ()), ((5,), (5,)), ((5,), (1,)), ((5, 1), (2,)), ((2, 5), ())])
def test_fused_matmul(across, stacks):
    feeds = {
        "a": draw(*stacks[0], *((3, 2) if across[0] else (2, 3))),
        "b": draw(*stacks[1], *((4, 3) if across[1] else (3, 4))),
    }
    inputs = ", ".join(f"float{dims(value.shape)} {name}" for name, value in feeds.items())
    body = f"com.microsoft.FusedMatMul <alpha = 0.5, transA = {across[0]}, transB = {across[1]}> (a, b)"
    lead = np.broadcast_shapes(*stacks)
    slopes, seeds = run_gradients(onnx.parser.parse_model(text(body, inputs, result=dims((*lead, 2, 4)))), feeds)
    g = 0.5 * seeds["y"]
    a, b = (np.swapaxes(feeds[n], -1, -2) if across[i] else feeds[n] for i, n in enumerate("ab"))
    want = {"a": np.matmul(g, np.swapaxes(b, -1, -2)), "b": np.matmul(np.swapaxes(a, -1, -2), g)}
    for index, name in enumerate("ab"):
        full = np.swapaxes(want[name], -1, -2) if across[index] else want[name]
        full = full.sum(tuple(range(full.ndim - feeds[name].ndim)))
        axes = tuple(i for i, size in enumerate(feeds[name].shape) if size == 1)
        assert slopes[name].shape == feeds[name].shape
        assert relative_error(slopes[name], full.sum(axes, keepdims=True)) < 1e-5


@pytest.mark.parametrize("batches", [("N,", "N,"), ("N,", ""), ("2,", "1,")])
def test_fused_matmul_whose_shape_is_not_inferred(batches):
    inputs = f"float[{batches[0]}2,3] a, float[{batches[1]}4,3] b"
    work = ir.from_proto(onnx.parser.parse_model(text("com.microsoft.FusedMatMul <transB = 1> (a, b)", inputs)))
    propagate_types(work)
    target, values = work.graph.outputs[0], list(work.graph.inputs)
    target.shape = None
    grads = differentiate(GraphBuilder(work), {target: ir.Value(name="seed", type=target.type)}, values)
    if "1," not in batches:
        assert [grads[value].shape for value in values] == [value.shape for value in values]
    assert set(grads) == set(values)


@pytest.mark.parametrize("attributes", ["transBatchA = 1", "transBatchB = 1"])
def test_transposed_batches_are_refused(attributes):
    body = f"com.microsoft.FusedMatMul <{attributes}> (a, b)"
    with pytest.raises(ModelError, match="transBatchA and transBatchB"):
        gradient_model(onnx.parser.parse_model(text(body, "float[3,3,3] a, float[3,3,3] b")), ["a"])


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bkj->bik", (2, 3, 4), (2, 2, 4)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("...ij,...jk->...ik", (2, 1, 2, 3), (1, 4, 3, 2)),
    ("...ij,jk->...ik", (2, 2, 3), (3, 4)),
    ("...i,...i", (2, 3), (2, 3)),
    ("i,j->ij", (2,), (3,)),
    ("i,i->", (3,), (3,)),
    ("ij->ji", (2, 3)),
    ("ij->i", (2, 3)),
    ("ij->", (2, 3)),
    ("...ij->...j", (2, 2, 3)),
    ("ij,k->k", (2, 3), (4,)),
    ("ij,jk->i", (2, 3), (3, 4)),
    ("ij,jk->", (2, 3), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 2), (2, 4)),
    ("ii->i", (3, 3)),
    ("ii->", (3, 3)),
    ("bii,bi->b", (2, 3, 3), (2, 3)),
    ("bi, bj -> bij", (2, 3), (2, 2)),
]


@needs_torch
@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EINSUMS])
def test_einsum(equation, shapes):
    import torch

    feeds = {name: draw(*shape) for name, shape in zip("abc", shapes, strict=False)}
    inputs = ", ".join(f"float{dims(value.shape)} {name}" for name, value in feeds.items())
    result = dims(np.einsum(equation, *feeds.values()).shape)
    model = text(f'Einsum <equation = "{equation}"> ({", ".join(feeds)})', inputs, result=result or None)
    check_by_torch(model, feeds, lambda **values: torch.einsum(equation, *values.values()))


@pytest.mark.parametrize(
    ("equation", "inner"), [("bij,jk->bik", "3,4"), ("bij,jk->b", "3,4"), ("...j,jk->...k", "3,4")]
)
def test_einsum_of_a_batch_of_any_size(equation, inner):
    model = text(f'Einsum <equation = "{equation}"> (a, b)', f"float[N,2,3] a, float[{inner}] b")
    check_by_differences(model, {"a": draw(2, 2, 3), "b": draw(3, 4)})


LOW = [
    ("Gemm <alpha = 0.5, beta = 2.0, transB = 1> (a, b, c)", ["float16", "bfloat16"]),
    ("com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (a, b)", ["float16", "bfloat16"]),
    ('Einsum <equation = "nj,kj->nk"> (a, b)', ["float16"]),
]


@pytest.mark.parametrize(("body", "dtype"), [(body, dtype) for body, dtypes in LOW for dtype in dtypes])
def test_low_precision_is_well_typed(body, dtype):
    model = onnx.parser.parse_model(text(body, f"{dtype}[N,3] a, {dtype}[4,3] b, {dtype}[4] c", dtype, "[N,4]"))
    backward, names = gradient_model(model)
    assert names[:2] == ["a", "b"]
    low = onnx.TensorProto.DataType.Value(dtype.upper())
    kinds = {o.name: o.type.tensor_type.elem_type for o in backward.graph.output}
    assert all(kinds[f"grad_{name}"] == low for name in names)
