"""Attention becomes one operator: in every exporter's form, for every mask, and only where it is attention."""

import numpy as np
import onnx
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion.fuse_attention import FuseAttention
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.manager import run_pass
from tests.fusion.attention_forms import (
    CONDITION,
    FORMS,
    MIX,
    NEWER,
    ONE,
    OTHERS,
    OUT,
    SEPARATE,
    TURNED,
    WEIGHTS,
    feeds,
    model,
)
from tests.support import parse, run


def fused(proto):
    program = plain_copy(amp.load(proto))
    result = run_pass(FuseAttention(), program.model)
    operators = [node.op_type for node in program.model.graph if node.domain == "com.microsoft"]
    return program, result, operators


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(a)


@pytest.mark.parametrize("case", ["padding", "a text of padding alone", "other sizes"])
@pytest.mark.parametrize("form", [*FORMS, *NEWER])
def test_attention_is_one_operator_that_computes_the_same(form, case):
    body, operator = {**FORMS, **NEWER}[form]
    proto = model(body, opset=23 if form in NEWER else 18)
    program, result, operators = fused(proto)
    assert (result.count, operators) == (1, [operator])
    fed = feeds(3, 4) if case == "other sizes" else feeds()
    if case == "a text of padding alone":
        fed["m"][1] = 0
    expected, fused_result = run(proto, fed)["y"], run(program, fed)["y"]
    assert np.isfinite(expected).all()
    assert distance(expected, fused_result) < 2e-6


def constant_mask(*, full):
    """Return attention with a causal mask that is a constant; its first row counts nothing if `full`."""
    mask = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    mask[0] = -np.inf if full else mask[0]
    body, _ = FORMS["rows asked by their scores"]
    body = body.replace(f"{CONDITION} mask = Where(c, zero, minus)", "")
    return model(body, mask=mask, header="(float[2,5,8] x) => (float[2,5,8] y)")


def test_a_constant_mask_that_leaves_each_row_a_score_needs_no_guard():
    proto = constant_mask(full=False)
    program, _, operators = fused(proto)
    assert operators == ["Attention"]
    assert not any(node.op_type == "Greater" for node in program.model.graph)  # it would tell rows that count
    inputs = {"x": feeds()["x"]}
    assert distance(run(proto, inputs)["y"], run(program, inputs)["y"]) < 2e-6
    assert fused(constant_mask(full=True))[2] == []


# name -> a mask of 5 queries (or of all) and 5 keys, how many nodes tell which rows count
CAUSAL_MASKS = {
    "each row has its own place": (np.eye(5), 0),
    "the first key counts for all": (np.eye(5)[:1], 0),
    "only the first row has none up to its place": (np.tri(5, k=1) - np.eye(5), 1),
    "the first key counts for none": (1 - np.eye(5)[:1], 1),
}


@pytest.mark.parametrize("name", CAUSAL_MASKS)
def test_rows_that_mask_and_causality_together_leave_empty_are_guarded(name):
    mask, guards = CAUSAL_MASKS[name]
    body = f"{SEPARATE} {ONE.format('is_causal=1', ', mask')} {OUT}"
    header = "(float[2,5,8] x) => (float[2,5,8] y)"
    proto, whole = (
        model(body, opset=23, mask=each.astype(bool), header=header) for each in (mask, mask * np.ones((5, 1)))
    )
    program, _, operators = fused(proto)
    assert operators == ["Attention"]
    assert sum(node.op_type == "Greater" for node in program.model.graph) == guards
    RemoveUnusedNodesPass()(program.model)  # ONNX Runtime runs its operator only with masks of all rows
    inputs = {"x": feeds()["x"]}
    assert distance(run(whole, inputs)["y"], run(program, inputs)["y"]) < 2e-6


REPLACED = {  # operands -> attention whose scores are replaced, the mask's new axes, what empty rows are averages of
    "one value": (
        "t = Transpose<perm=[0,2,1]>(x) f = MatMul(x, t) s = Where(c, f, low) p = Softmax<axis=-1>(s) y = MatMul(p, x)",
        [1],
        lambda x: x,
    ),
    "products with constants": (
        f"{SEPARATE} {TURNED} s0 = MatMul(q, k) s = Where(c, s0, low) {MIX} y = Identity(o)",
        [1, 2],
        lambda x: x @ WEIGHTS["wv"] + WEIGHTS["bv"],
    ),
}


@pytest.mark.parametrize("operands", REPLACED)
def test_a_row_whose_scores_are_all_replaced_by_one_number_stays_an_average(operands):
    """As a summand, -1000 would leave the scores."""
    body, axes, values = REPLACED[operands]
    body = f"c0 = Cast<to=9>(m) c = Unsqueeze(c0, axes) {body} z = Identity(y)"
    header = "(float[b,l,8] x, float[b,l] m) => (float[b,l,8] z)"
    proto = model(body, low=np.float32(-1000), axes=np.array(axes), header=header)
    program, _, operators = fused(proto)
    assert operators == ["MultiHeadAttention"]
    inputs = feeds()
    inputs["m"][1] = 0
    expected, computed = run(proto, inputs)["z"], run(program, inputs)["z"]
    average = values(inputs["x"][1]).mean(axis=0)
    np.testing.assert_allclose(expected[1], np.broadcast_to(average, (5, 8)), atol=1e-6)
    assert distance(expected, computed) < 2e-6


def of_one_sample(shape):
    """Return attention as torch's exporter writes it for a known batch of one; `shape` is that of its result."""
    sizes = {"by3": [5, 2, 4], "by4": [1, 2, 5, 4], "joined": shape}
    body = "xt = Transpose<perm=[1,0,2]>(x)"
    for name in "qkv":
        body += f" {name}m = MatMul(xt, w{name}) {name}3 = Reshape({name}m, by3)"
        body += f" {name}t = Transpose<perm=[1,0,2]>({name}3) {name} = Reshape({name}t, by4)"
    body += " kt4 = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kt4) p = Softmax<axis=-1>(s) o4 = MatMul(p, v)"
    body += " ot = Transpose<perm=[2,0,1,3]>(o4) o = Reshape(ot, joined) y = MatMul(o, wo)"
    constants = {name: np.array(size) for name, size in sizes.items()}
    return model(body, **constants, header=f"(float[1,5,8] x) => (float[{','.join(map(str, shape))}] y)")


@pytest.mark.parametrize(("shape", "expected"), [([5, 8], ["Attention"]), ([5, 1, 8], ["Attention"]), ([1, 5, 8], [])])
def test_a_batch_of_one_sample_may_be_a_part_of_the_row(shape, expected):
    """Where the sample comes first again, no axis of the result is known to be it."""
    proto = of_one_sample(shape)
    program, _, operators = fused(proto)
    assert operators == expected
    inputs = {"x": feeds(batch=1)["x"]}
    result = run(program, inputs)["y"]
    assert result.shape == tuple(shape)
    assert distance(run(proto, inputs)["y"], result) < 2e-6


def test_whether_a_row_counts_is_not_told_by_the_mask_s_minus_infinity():
    told = 0
    for form, (body, _) in {**FORMS, **NEWER}.items():
        program, _, _ = fused(model(body, opset=23 if form in NEWER else 18))
        for node in program.model.graph:
            if node.op_type == "ReduceSum" and node.inputs[0].producer().op_type == "Where":
                told += 1
                assert len(node.inputs[0].uses()) == 1, form
                assert {float(constant_array(value)) for value in node.inputs[0].producer().inputs[1:]} == {0, 1}
    assert told


def test_weights_that_are_one_already_are_not_copied():
    program, _, _ = fused(model(FORMS["slices of one product"][0]))
    node = next(node for node in program.model.graph if node.op_type == "Attention")
    assert [value.name for value in node.inputs[1:3]] == ["packed", "packed_bias"]


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_not_attention_stays(form):
    body, weights = OTHERS[form]
    _, result, operators = fused(model(body, **weights))
    assert (result.count, operators, result.modified) == (0, [], False)


def layers(count):
    body = (
        "c0 = Cast<to=9>(m) c = Unsqueeze(c0, ones) zero = Constant<value_float=0.0>()"
        " minus = Constant<value_float=-3.4e38>() [shared] mask = Where(c, zero, minus)"
    )
    for index in range(count):
        source = "x" if index == 0 else f"y{index - 1}"
        for name, order in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3")):
            body += f" {name}m{index} = MatMul({source}, w) {name}r{index} = Reshape({name}m{index}, heads)"
            body += f" {name}{index} = Transpose<perm=[{order}]>({name}r{index})"
        body += f" s{index} = MatMul(q{index}, k{index}) a{index} = Add(s{index}, mask) p{index} = Softmax(a{index})"
        body += f" o{index} = MatMul(p{index}, v{index}) t{index} = Transpose<perm=[0,2,1,3]>(o{index})"
        body += f" y{index} = Reshape(t{index}, whole)"
    body += f" y = Identity(y{count - 1})"
    weights = {"w": np.eye(8, dtype=np.float32), "heads": np.array([0, 0, 2, 4]), "whole": np.array([0, 0, 8])}
    return parse(f"(float[b,l,8] x, float[b,l] m) => (float[b,l,8] y) {{ {body} }}", ones=np.array([1, 2]), **weights)


def test_layers_share_a_mask():
    program, result, _ = fused(layers(3))
    graph = program.model.graph
    assert result.count == 3
    biases = {node.inputs[5].name for node in graph if node.op_type == "Attention"}
    assert len(biases) == 1
    assert sum(node.op_type == "Expand" for node in graph) == 1


def test_a_program_of_another_opset_or_without_softmax_is_not_touched():
    old = parse("(float[2,3] x) => (float[2,3] y) { y = Softmax<axis=-1>(x) }", opset=12)
    assert fused(old)[1].modified is False
    assert fused(parse("(float[2] x) => (float[2] y) { y = Relu(x) }"))[1].modified is False


def test_half_precision_stays():
    proto = model(FORMS["without a mask"][0])
    low = amp.transpile(proto, level="O2", verify=False, keep_io_types=False).program.to_onnx()
    assert any(info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for info in low.graph.input)
    assert fused(low)[1].count == 0
