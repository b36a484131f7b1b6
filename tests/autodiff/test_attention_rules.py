"""Gradients of Attention and RotaryEmbedding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    run_gradients,
)
from tests.support import needs_onnx

RANDOM = np.random.default_rng(0)
FLAT = "q_num_heads = 4, kv_num_heads = {kv}"


def draw(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def text(inputs: str, attributes: str = "", more: str = "", opset: int = 23, dtype: str = "float") -> str:
    attributes = f"<{attributes}>" if attributes else ""
    return f"""<ir_version: 11, opset_import: ["" : {opset}]>
        g ({inputs}) => ({dtype}[] y) {{ y = Attention {attributes} (q, k, v{more}) }}"""


def case(rank: int, kv: int, batch: str = "N", dtype: str = "float") -> tuple[str, dict[str, np.ndarray], str]:
    """Inputs as text, feeds and attributes: 2 samples, 4 query heads of size 3, 3 queries, 5 keys, values of size 2."""
    shapes = {"q": (4, 3, 3), "k": (kv, 5, 3), "v": (kv, 5, 2)}
    if rank == 3:
        shapes = {name: (length, heads * size) for name, (heads, length, size) in shapes.items()}
    inputs = ", ".join(f"{dtype}[{batch},{','.join(map(str, s))}] {name}" for name, s in shapes.items())
    return inputs, {n: draw(2, *s) for n, s in shapes.items()}, FLAT.format(kv=kv) if rank == 3 else ""


def joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("kv", [4, 2, 1])
@pytest.mark.parametrize("more", ["", "is_causal = 1", "scale = 0.5", "softcap = 1.5, is_causal = 1"])
def test_attention(rank, kv, more):
    inputs, feeds, attributes = case(rank, kv)
    check_by_differences(text(inputs, joined(attributes, more)), feeds)


CAUSAL = "is_causal = 1"
MASKS = [
    *[(kind, more) for kind in ("float", "bool") for more in ("", "softcap = 2.0")],
    ("float", CAUSAL),
    pytest.param("bool", CAUSAL, marks=needs_onnx("1.23", "the older reference evaluator makes this mask NaN")),
]


@pytest.mark.parametrize("shape", [(3, 5), (1, 1, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5)])
@pytest.mark.parametrize(("kind", "more"), MASKS)
def test_masks(shape, more, kind):
    inputs, feeds, _ = case(4, 2, "2")
    mask = draw(*shape) if kind == "float" else RANDOM.uniform(size=shape) < 0.6
    mask[..., 0] = 1
    model = text(f"{inputs}, {kind}[{','.join(map(str, shape))}] m", more, ", m", opset=24)
    check_by_differences(model, feeds | {"m": mask})


@needs_torch
@pytest.mark.parametrize("causal", [0, 1])
def test_as_torch_computes_it(causal):
    from torch.nn.functional import scaled_dot_product_attention as attend

    inputs, feeds, _ = case(4, 2)
    check_by_torch(
        text(inputs, f"is_causal = {causal}"),
        feeds,
        lambda q, k, v: attend(q, k, v, is_causal=bool(causal), enable_gqa=True),
    )


@pytest.mark.parametrize("lengths", [("S", "S"), ("S", "T")])
def test_lengths_that_are_not_known(lengths):
    query, key = lengths
    inputs = f"float[N,{query},8] q, float[N,{key},4] k, float[N,{key},4] v"
    feeds = {"q": draw(2, 3, 8), "k": draw(2, 3, 4), "v": draw(2, 3, 4)}
    check_by_differences(text(inputs, joined(FLAT.format(kv=2), "is_causal = 1")), feeds)


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_a_query_that_attends_to_nothing_has_gradient_zero(kind):
    inputs, feeds, _ = case(4, 4)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    mask_value = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype("f")
    model = text(f"{inputs}, {kind}[3,5] m", more=", m")
    seeds = {"y": draw(2, 4, 3, 2)}
    slopes, _ = run_gradients(onnx.parser.parse_model(model), feeds | {"m": mask_value}, ["q", "k", "v"], seeds=seeds)
    assert all(np.all(np.isfinite(grad)) and grad.any() for grad in slopes.values())
    assert not slopes["q"][:, :, 1].any()


REFUSED = [
    ("float[N,4,2,3] pk, float[N,4,2,2] pv", ", , pk, pv", "", "past_key"),
    ("int64[N] len", ", , , , len", "", "nonpad_kv_seqlen"),
    ("bool[3,4] m", ", m", "", "pad it"),
]


@pytest.mark.parametrize(("inputs", "more", "attributes", "message"), REFUSED)
def test_what_is_refused(inputs, more, attributes, message):
    base, _, _ = case(4, 4)
    with pytest.raises(ModelError, match=message):
        gradient_model(onnx.parser.parse_model(text(f"{base}, {inputs}", attributes, more, opset=24)), ["q"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rank", [3, 4])
def test_low_precision_is_well_typed(rank, dtype):
    inputs, _, attributes = case(rank, 2, dtype=dtype)
    attributes = joined(attributes, "is_causal = 1, softcap = 5.0")
    model = text(f"{inputs}, {dtype}[3,5] m", attributes, ", m", dtype=dtype)
    backward, names = gradient_model(onnx.parser.parse_model(model))
    assert names == ["q", "k", "v", "m"]
    low = onnx.TensorProto.DataType.Value(dtype.upper())
    kinds = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(backward).graph.value_info}
    assert all(o.type.tensor_type.elem_type == low for o in backward.graph.output)
    assert all(kinds[n.output[0]] == low for n in backward.graph.node if n.op_type == "MatMul")
    assert all(kinds[n.output[0]] == onnx.TensorProto.FLOAT for n in backward.graph.node if n.op_type == "Softmax")


def rotary(shape: str, attributes: str, cache: str, more: str = "", inputs: str = "", dtype: str = "float") -> str:
    return f"""<ir_version: 11, opset_import: ["" : 23]>
        g ({dtype}[{shape}] x, {dtype}[{cache}] c, {dtype}[{cache}] s{inputs}) => ({dtype}[] y)
        {{ y = RotaryEmbedding <{attributes}> (x, c, s{more}) }}"""


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", [True, False])
def test_rotary_embedding(interleaved, partial, rank, positions):
    half = 2 if partial else 4
    shape = (2, 3, 16) if rank == 3 else (2, 2, 3, 8)
    attributes = joined(
        f"interleaved = {interleaved}",
        "rotary_embedding_dim = 4" if partial else "",
        "num_heads = 2" if rank == 3 else "",
    )
    angles = RANDOM.uniform(0, 3, (10, half) if positions else (2, 3, half)).astype("f")
    feeds = {"x": draw(*shape), "c": np.cos(angles), "s": np.sin(angles)}
    if positions:
        feeds["p"] = RANDOM.integers(0, 10, (2, 3))
    model = rotary(
        ",".join(map(str, shape)),
        attributes,
        ",".join(map(str, angles.shape)),
        ", p" if positions else "",
        ", int64[2,3] p" if positions else "",
    )
    check_by_differences(model, feeds, wrt=["x"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rotary_embedding_in_low_precision_is_well_typed(dtype):
    model = onnx.parser.parse_model(rotary("N,2,3,8", "interleaved = 0", "N,3,4", dtype=dtype))
    backward, names = gradient_model(model, ["x"])
    assert names == ["x"]
    assert backward.graph.output[-1].type.tensor_type.elem_type == onnx.TensorProto.DataType.Value(dtype.upper())


def test_rotary_caches_have_no_gradient():
    with pytest.raises(ModelError, match="caches have no gradient"):
        gradient_model(onnx.parser.parse_model(rotary("N,2,3,8", "interleaved = 0", "N,3,4")), ["c"])
