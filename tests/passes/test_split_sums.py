"""Products in parts: what is written, what it computes, and what cannot be parted."""

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.split_sums import SplitSums
from amp_transpiler.precision.policy import InParts
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.split_sums import PARTS, may_split
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import array, assert_valid, parse, run

W, B = array(64, 8, seed=1), array(8, seed=2)
KERNELS = array(8, 32, 3, 3, seed=3)
PRODUCTS = {
    "MatMul": ("(float[4,64] x) => (float[4,8] y) { [p] y = MatMul (x, w) }", (4, 64)),
    "a stack": ("(float[N,3,4,64] x) => (float[N,3,4,8] y) { [p] y = MatMul (x, w) }", (2, 3, 4, 64)),
    "Gemm": ("(float[4,64] x) => (float[4,8] y) { [p] y = Gemm (x, w) }", (4, 64)),
    "Gemm with a bias": ("(float[4,64] x) => (float[4,8] y) { [p] y = Gemm<transB=1> (x, turned, b) }", (4, 64)),
    "Conv": (
        "(float[1,32,6,6] x) => (float[1,8,3,3] y) { [p] y = Conv<strides=[2,2], pads=[1,1,1,1]> (x, k, b) }",
        (1, 32, 6, 6),
    ),
    "a value that is read twice": (
        "(float[4,64] x) => (float[4,8] y) { [p] z = MatMul (x, w) a = Relu (z) y = Add (a, z) }",
        (4, 64),
    ),
}
WEIGHTS = {"w": W, "turned": np.ascontiguousarray(W.T), "b": B, "k": KERNELS}


def product(name):
    text, shape = PRODUCTS[name]
    weights = {key: value for key, value in WEIGHTS.items() if f"{key})" in text or f"{key}," in text}
    return parse(text, opset=17, **weights), {"x": array(*shape, seed=5)}


def node_of(program):
    return next(node for node in program.model.graph if node.name == "p")


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_parts_compute_the_product(name, parts):
    model, feeds = product(name)
    program = amp.load(model)
    propagate_types(program.model)
    result = run_pass(SplitSums({node_of(program): parts}), program.model)
    assert result.count == 1
    assert_valid(program)
    np.testing.assert_allclose(run(program, feeds)["y"], run(model, feeds)["y"], rtol=1e-4, atol=1e-5)
    assert node_of(program).op_type == ("Conv" if name == "Conv" else "MatMul")
    assert not set(program.model.graph.initializers) & {"w", "turned", "k"}, "nobody reads them"


def converted(name, parts):
    model, feeds = product(name)
    policy = choose_policy(Request(target="webgpu", level="auto", dtype="float16"))
    policy = dataclasses.replace(policy, objective="low", parts={"p": InParts(parts, "it overflows")})
    program = amp.load(model)
    prepare(program, policy, RangeFaults(policy.low))
    conversion = convert(program, policy, RangeFaults(policy.low))
    return program, conversion, model, feeds


@pytest.mark.parametrize("name", PRODUCTS)
def test_parts_are_low_and_their_sum_is_not(name):
    program, conversion, model, feeds = converted(name, 4)
    assert_valid(program)
    types = {node.op_type: node.outputs[0].dtype for node in program.model.graph if node.op_type != "Cast"}
    low = {op_type for op_type, dtype in types.items() if dtype == ir.DataType.FLOAT16}
    assert low >= ({"Slice", "Conv"} if name == "Conv" else {"Reshape", "Transpose", "MatMul"})
    assert types["Add" if name == "Conv" else "ReduceSum"] == ir.DataType.FLOAT
    decision = next(decision for node, decision in conversion.assignment.decisions.items() if node.name == "p")
    assert str(decision.reason) == "computed in 4 parts, added up in float32: it overflows"
    np.testing.assert_allclose(run(program, feeds)["y"], run(model, feeds)["y"], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("y = MatMul (x, x)", {}),  # no constant operand
        ("y = MatMul (w, x)", {"w": array(8, 8)}),
        ("y = MatMul (x, w)", {"w": array(2, 8, 8)}),  # a stack of constants
        ("y = Gemm<alpha=0.5> (x, w)", {"w": array(8, 8)}),
        ("y = Gemm<transA=1> (x, w)", {"w": array(8, 8)}),
        ("y = Relu (x)", {}),
    ],
)
def test_what_cannot_be_parted(text, weights):
    program = amp.load(parse(f"(float[8,8] x) => (float[A,B] y) {{ [p] {text} }}", opset=17, **weights))
    propagate_types(program.model)
    assert not may_split(node_of(program), 2, 17)


def test_channels_that_do_not_divide_and_groups_stay_whole():
    for text, kernels in (("Conv", array(8, 6, 3, 3)), ("Conv<group=2>", array(8, 4, 3, 3))):
        channels = kernels.shape[1] * (2 if "group" in text else 1)
        model = parse(f"(float[1,{channels},6,6] x) => (float[1,8,4,4] y) {{ [p] y = {text} (x, k) }}", k=kernels)
        program = amp.load(model)
        propagate_types(program.model)
        assert [parts for parts in PARTS if may_split(node_of(program), parts, 17)] == ([2] if "=" not in text else [])


def test_before_opset_13_nothing_is_parted():
    program = amp.load(product("MatMul")[0])
    propagate_types(program.model)
    assert may_split(node_of(program), 2, 13)
    assert not may_split(node_of(program), 2, 12)
