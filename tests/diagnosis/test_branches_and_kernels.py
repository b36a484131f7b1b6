"""Diagnoses of models with branches, and of kernels that the device computes wrongly."""

import numpy as np

import amp_transpiler as amp
from tests.support import parse

X = np.array([[-7.0, -6.5, -7.5, -6.0]], np.float32)
BRANCHES = """(float[1,4] x, float[4,4] w) => (float[1,4] y) {
    [product] p = MatMul(x, w)
    [most] m = ReduceMax<keepdims = 0>(p)
    [zero] zero = Constant<value = float {0.0}>()
    [negative] condition = Less(m, zero)
    [branch] y = If(condition) <
        then_branch = yes () => (float[1,4] a) { [right] a = Sigmoid(p) },
        else_branch = no () => (float[1,4] b) { [wrong] b = Tanh(p) }
    >
}"""


def test_the_branch_of_a_bfloat16_model_is_found_where_the_cpu_has_no_kernels(tmp_path):
    inputs = {"x": X, "w": np.eye(4, dtype=np.float32)}
    model, low = parse(BRANCHES), tmp_path / "low.onnx"
    amp.transpile(model, low, level="O2", dtype="bfloat16", target="tensorrt", inputs=inputs)

    diagnosis = amp.debug(model, low, inputs=inputs)

    # The kernel of CUDA is 0 below 2^-8; the rounding of the same node is no second suspect.
    assert diagnosis.guilty is not None
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("right", "kernel")
    assert [each.node for each in diagnosis.suspects].count("right") == 1
    # The path has nodes of the model only, not the Identity that stands in place of the If.
    assert diagnosis.path == ("right",)
    # A conversion for CUDA knows that kernel, so nothing more is to be kept float32.
    assert diagnosis.cure is not None
    assert diagnosis.cure.nodes == ()
