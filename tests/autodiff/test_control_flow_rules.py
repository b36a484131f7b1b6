"""Gradients through If, and the operators that are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff import differentiate
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import scopes
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    relative_error,
    run_gradients,
)
from tests.autodiff.graph_text import assert_low_is_well_typed, graph

RANDOM = np.random.default_rng(4)


def some(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def branches(then: str, other: str, outputs: str = "y", declared: str = "float[N,3] {0}") -> str:
    """An If whose branches' outputs are `t0`, `t1`, ... and `e0`, `e1`, ...: as many as it has outputs."""
    count = len(outputs.split(","))
    heads = [", ".join(declared.format(f"{letter}{i}") for i in range(count)) for letter in "te"]
    return (
        f"{outputs} = If (c) <then_branch = t () => ({heads[0]}) {{ {then} }}, "
        f"else_branch = e () => ({heads[1]}) {{ {other} }}>"
    )


CASES = {
    "both use both": ("float[N,3] a, float[3] b", branches("t0 = Mul(a, b)", "e0 = Add(a, b)")),
    "each uses one": ("float[N,3] a, float[N,3] b", branches("t0 = Mul(a, a)", "e0 = Identity(b)")),
    "one uses none": ("float[N,3] a", branches("t0 = Mul(a, a)", "s = Shape(a) e0 = ConstantOfShape(s)")),
    "several steps": (
        "float[N,3] a, float[3,3] b",
        branches("t1 = MatMul(a, b) t2 = Mul(t1, t1) t0 = Add(t2, t1)", "e1 = MatMul(a, b) e0 = Mul(a, e1)"),
    ),
    "used twice, and outside": (
        "float[N,3] a, float[3] b",
        f"m = Mul(a, b) {branches('t0 = Mul(m, m)', 'e0 = Add(m, b)', 'z')} y = Mul(z, a)",
    ),
    "two outputs": (
        "float[N,3] a, float[3] b",
        branches("t0 = Mul(a, b) t1 = Identity(t0)", "e0 = Add(a, b) e1 = Mul(e0, b)", "y, z"),
    ),
    "nested": (
        "float[N,3] a, float[3] b",
        branches(
            "m = Mul(a, b) t0 = If (d) <then_branch = tt () => (float[N,3] u) { u = Mul(m, a) }, "
            "else_branch = te () => (float[N,3] v) { v = Add(m, b) }>",
            "e0 = Sub(b, a)",
        ),
    ),
    "other shapes": (
        "float[N,3] a, float[1] b",
        branches("t0 = Mul(a, b)", "k = Constant<value_ints=[0]>() e0 = ReduceSum<keepdims=1>(a, k)"),
    ),
}  # fmt: skip


def text_of(case: str) -> str:
    inputs, body = CASES[case]
    extra = ", bool d" if "(d)" in body else ""
    outputs = "float y, float z" if case == "two outputs" else "float y"
    return graph(f"bool c{extra}, {inputs}", body, outputs=outputs)


def feeds_of(case: str, condition: bool, inner: bool = True) -> dict[str, np.ndarray]:
    shapes = {"float[N,3]": (2, 3), "float[3]": (3,), "float[3,3]": (3, 3), "float[1]": (1,)}
    drawn = {part.split()[1]: some(*shapes[part.split()[0]]) for part in CASES[case][0].split(", ")}
    fed = {"c": np.array(condition), **drawn}
    return {**fed, "d": np.array(inner)} if "(d)" in CASES[case][1] else fed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_both_branches(case, condition, inner):
    check_by_differences(text_of(case), feeds_of(case, condition, inner))


@pytest.mark.parametrize("case", [case for case in CASES if case != "one uses none"])  # its zeros are float32
def test_low_types_are_well_typed(case):
    assert_low_is_well_typed(text_of(case))


def test_a_branch_that_does_not_use_a_value_gives_zeros():
    feeds = feeds_of("each uses one", condition=True)
    slopes, seeds = run_gradients(onnx.parser.parse_model(text_of("each uses one")), feeds)
    assert not slopes["b"].any()
    assert relative_error(slopes["a"], 2 * feeds["a"] * seeds["y"]) < 1e-6


def test_only_what_is_wanted_is_computed():
    with_gradients, names = gradient_model(onnx.parser.parse_model(text_of("both use both")), wrt=["a"])
    assert names == ["a"]
    backward = with_gradients.graph.node[-2]
    assert (backward.op_type, len(backward.output)) == ("If", 1)
    held = {node.op_type for a in backward.attribute for node in a.g.node}
    assert "Add" not in held  # the forward result is not needed


def test_names_are_unique_across_scopes():
    backward, _ = gradient_model(onnx.parser.parse_model(text_of("nested")))
    model = ir.from_proto(backward)
    names = [v.name for scope in scopes(model) for node in scope.graph for v in node.outputs]
    assert len(names) == len(set(names))
    assert NameAllocator(model).fresh(names[0]) != names[0]


def test_gradients_stop_inside_a_branch():
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            onnx.parser.parse_model(
                graph(
                    "bool c, float[2,3] a",
                    branches("m = Mul(a, a) t0 = Add(m, a)", "e0 = Identity(a)", declared="float[2,3] {0}"),
                )
            )
        )
    )
    branch = model.graph[0].attributes["then_branch"].as_graph()
    a, y = model.graph.inputs[1], model.graph.outputs[0]
    y.shape = ir.Shape([2, 3])
    seed = ir.Value(name="seed", type=y.type, shape=y.shape)
    model.graph.inputs.append(seed)
    builder = GraphBuilder(model)
    grads = differentiate(builder, {y: seed}, [a], stop=[branch[0].outputs[0]])
    maker = grads[a].producer()
    assert maker is not None
    assert [n.op_type for n in maker.attributes["then_branch"].as_graph()] == ["Identity"]  # the Mul is left out


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("r = RandomNormalLike(a) t0 = Mul(a, r)", r"'.*' \(RandomNormalLike\), which would draw other numbers"),
        (
            "k = Constant<value_float=0.5>() t0 = Dropout(a, k, c)",  # whether it drops is known in the run alone
            r"\(Dropout\), which would draw",
        ),
    ],
)
def test_random_branches_are_refused(node, problem):
    text = graph("bool c, float[N,3] a", branches(node, "e0 = Identity(a)"))
    with pytest.raises(ModelError, match=rf"\(If, opset 21\).*{problem}"):
        gradient_model(onnx.parser.parse_model(text))


@needs_torch
@pytest.mark.parametrize("condition", [True, False])
def test_by_torch(condition):
    def function(c, a, b):
        m = a @ b
        return m * m + m if bool(c) else a * m

    check_by_torch(text_of("several steps"), feeds_of("several steps", condition), function)
