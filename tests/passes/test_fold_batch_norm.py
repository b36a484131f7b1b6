"""A BatchNormalization folds into its producer exactly when that changes nothing but rounding."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.fold_batch_norm import FoldBatchNorm

RANDOM = np.random.default_rng(3)


def batch_norms(model):
    return {n.name or n.outputs[0].name for n in all_nodes(model) if n.op_type == "BatchNormalization"}


def fold_batch_norm(model, *wanted):
    """Fold, and return the names of the nodes that are gone."""
    before = batch_norms(model)
    count = FoldBatchNorm(*wanted)(model).count
    gone = before - batch_norms(model)
    assert count == len(gone)
    return sorted(gone)


def tensor(name, *shape, positive=False):
    values = RANDOM.normal(0, 1, shape)
    return onnx.numpy_helper.from_array((np.abs(values) + 0.1 if positive else values).astype(np.float32), name)


def statistics(channels):
    return [tensor(n, channels, positive=n in ("scale", "var")) for n in ("scale", "shift", "mean", "var")]


def build(text, initializers, opset=17):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(initializers)
    return ir.from_proto(model)


def ops(model):
    return [node.op_type for node in model.graph.all_nodes()]


BN = "y = BatchNormalization <epsilon=0.001> (z, scale, shift, mean, var)"

CONVS = [  # operator and attributes, shape of x, of w, whether there is a bias, channels
    ("Conv", (2, 3, 8), (4, 3, 3), True, 4),
    ("Conv", (2, 3, 8), (4, 3, 3), False, 4),
    ("Conv <strides=[2,2], pads=[1,1,1,1]>", (2, 3, 8, 8), (6, 3, 3, 3), True, 6),
    ("Conv <group=3>", (2, 6, 8, 8), (9, 2, 3, 3), True, 9),
    ("Conv <group=6>", (2, 6, 8, 8), (6, 1, 3, 3), False, 6),
    ("Conv", (1, 2, 5, 5, 5), (3, 2, 2, 2, 2), True, 3),
    ("ConvTranspose", (2, 4, 8), (4, 3, 3), True, 3),
    ("ConvTranspose <strides=[2,2]>", (2, 4, 5, 5), (4, 3, 3, 3), False, 3),
    ("ConvTranspose <group=2, strides=[2,2]>", (2, 4, 5, 5), (4, 3, 2, 2), True, 6),
    ("ConvTranspose <group=4>", (1, 4, 3, 3, 3), (4, 2, 2, 2, 2), False, 8),
    ("Gemm", (5, 4), (4, 3), True, 3),
    ("Gemm", (5, 4), (4, 3), False, 3),
    ("Gemm <transB=1>", (5, 4), (3, 4), True, 3),
    ("Gemm <transA=1, transB=1, alpha=1.0, beta=1.0>", (4, 5), (3, 4), False, 3),
]


@pytest.mark.parametrize(("op", "x_shape", "w_shape", "has_bias", "channels"), CONVS)
@pytest.mark.parametrize("opset", [11, 14, 15, 22])
def test_folds(run, op, x_shape, w_shape, has_bias, channels, opset):
    rank = ",".join("PQRST"[: len(x_shape)])
    text = (
        f"agraph (float[{','.join(map(str, x_shape))}] x) => (float[{rank}] y)"
        f"{{ z = {op} (x, w{', b' if has_bias else ''}) [the_bn] {BN} }}"
    )
    bias = [tensor("b", channels)] if has_bias else []
    model = build(text, [tensor("w", *w_shape), *bias, *statistics(channels)], opset)
    x = RANDOM.normal(0, 1, x_shape).astype(np.float32)
    expected = run(model, {"x": x})[0]
    assert fold_batch_norm(model) == ["the_bn"]
    assert ops(model) == [op.split()[0]]
    assert len(model.graph.initializers) == 2  # nothing of the old parameters is left
    actual = run(model, {"x": x})[0]
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_rounds_once():
    model = build(
        f"agraph (float[1,2,4,4] x) => (float[P,Q,R,S] y) {{ z = Conv (x, w, b) {BN} }}",
        [tensor("w", 3, 2, 3, 3), tensor("b", 3), *statistics(3)],
    )
    old = {name: value.const_value.numpy().astype(np.float64) for name, value in model.graph.initializers.items()}
    fold_batch_norm(model)
    factor = old["scale"] / np.sqrt(old["var"] + np.float64(np.float32(0.001)))
    weight, bias = (value.const_value.numpy() for value in next(iter(model.graph)).inputs[1:])
    np.testing.assert_array_equal(weight, (old["w"] * factor[:, None, None, None]).astype(np.float32))
    np.testing.assert_array_equal(bias, ((old["b"] - old["mean"]) * factor + old["shift"]).astype(np.float32))


def test_large_weights_are_computed_when_they_are_read(run):
    model = build(
        f"agraph (float[1,64,3,3] x) => (float[P,Q,R,S] y) {{ z = Conv (x, w) {BN} }}",
        [tensor("w", 64, 64, 3, 3), *statistics(64)],
    )
    x = RANDOM.normal(0, 1, (1, 64, 3, 3)).astype(np.float32)
    expected = run(model, {"x": x})[0]
    reads = []
    weight = model.graph.initializers["w"]
    tensor_ = weight.const_value
    weight.const_value = ir.LazyTensor(lambda: reads.append(1) or tensor_, tensor_.dtype, tensor_.shape, name="w")
    assert len(fold_batch_norm(model)) == 1
    assert not reads
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    assert reads


def test_parameters_in_constants_behind_identities_and_a_scalar_gemm_bias(run):
    model = build(
        """agraph (float[2,2] x) => (float[P,Q] y) <float[2,2] w0 = {1.0, 2.0, 3.0, 4.0}, float[1] b = {0.5}> {
            w = Identity (w0)
            ones = Constant <value_floats=[1.0, 2.0]> ()
            nought = Constant <value = float[2] {0.0, 1.0}> ()
            z = Gemm (x, w, b)
            y = BatchNormalization (z, ones, nought, nought, ones)
        }""",
        [],
    )
    x = RANDOM.normal(0, 1, (2, 2)).astype(np.float32)
    expected = run(model, {"x": x})[0]
    assert len(fold_batch_norm(model)) == 1
    assert ops(model) == ["Gemm"]
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5)


def test_a_bias_that_expands_one_number(run):
    """Torch's exporter writes a Conv without bias so, as long as nothing folds its constants."""
    model = build(
        f"""agraph (float[1,2,4,4] x) => (float[P,Q,R,S] y) <float half = {{0.5}}, int64[1] where = {{0}}> {{
            sizes = Shape (w)
            channels = Gather (sizes, where)
            like = CastLike (half, x)
            b = Expand (like, channels)
            z = Conv (x, w, b)
            {BN}
        }}""",
        [tensor("w", 2, 2, 3, 3), *statistics(2)],
    )
    x = RANDOM.normal(0, 1, (1, 2, 4, 4)).astype(np.float32)
    expected = run(model, {"x": x})[0]
    assert len(fold_batch_norm(model)) == 1
    assert ops(model) == ["Conv"]
    assert len(model.graph.initializers) == 2
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_names_readers_and_shared_weights_are_kept(run):
    model = build(
        """agraph (float[1,2,4,4] x) => (float[P,Q,R,S] y, float[P,Q,R,S] other, float[P,Q,R,S] twice) {
            [a] z = Conv (x, w)
            [bn] y = BatchNormalization (z, scale, shift, mean, var)
            [c] other = Conv (x, w)
            twice = Add (y, y)
        }""",
        [tensor("w", 2, 2, 3, 3), *statistics(2)],
    )
    x = RANDOM.normal(0, 1, (1, 2, 4, 4)).astype(np.float32)
    expected = run(model, {"x": x})
    assert fold_batch_norm(model) == ["bn"]
    assert [value.name for value in model.graph.outputs] == ["y", "other", "twice"]
    assert [node.name for node in model.graph][:2] == ["a", "c"]
    assert "w" in model.graph.initializers
    for actual, wanted in zip(run(model, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_chains_and_bodies(run):
    model = build(
        """agraph (float[1,2,4,4] x, bool c) => (float[P,Q,R,S] y) {
            y = If (c) <
                then_branch = t () => (float[P,Q,R,S] p) {
                    z = Conv (x, w)
                    n = BatchNormalization (z, scale, shift, mean, var)
                    p = BatchNormalization (n, shift, scale, mean, scale)
                },
                else_branch = e () => (float[P,Q,R,S] q) { q = Conv (x, w) }
            >
        }""",
        [tensor("w", 2, 2, 3, 3), *statistics(2)],
    )
    feeds = {"x": RANDOM.normal(0, 1, (1, 2, 4, 4)).astype(np.float32), "c": np.array(True)}
    expected = run(model, feeds)[0]
    assert fold_batch_norm(model) == ["n", "p"]
    assert ops(model) == ["If", "Conv", "Conv"]
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-4, atol=1e-5)


def test_only_those_wanted():
    text = f"agraph (float[1,2,4,4] x) => (float[P,Q,R,S] y) {{ z = Conv (x, w) {BN} }}"
    model = build(text, [tensor("w", 2, 2, 3, 3), *statistics(2)])
    assert fold_batch_norm(model, lambda node: node.name == "another") == []
    assert "BatchNormalization" in ops(model)


X = "float[1,2,4,4] x"
Y = "float[P,Q,R,S] y"
KEPT = {
    "producer's output is a graph output": f"({X}) => ({Y}, float[P,Q,R,S] z) {{ z = Conv (x, w) {BN} }}",
    "producer has another reader": f"({X}) => ({Y}, float[P,Q,R,S] v) {{ z = Conv (x, w) {BN} v = Relu (z) }}",
    "weights are an input": f"({X}, float[2,2,3,3] u) => ({Y}) {{ z = Conv (x, u) {BN} }}",
    "bias is an input": f"({X}, float[2] u) => ({Y}) {{ z = Conv (x, w, u) {BN} }}",
    "bias expands more than one number": f"({X}) => ({Y}) <float[2] u = {{1.0, 2.0}}, int64[1] n = {{2}}>"
    f"{{ v = Expand (u, n) z = Conv (x, w, v) {BN} }}",
    "weights are computed": f"({X}) => ({Y}) {{ u = Relu (w) z = Conv (x, u) {BN} }}",
    "statistics are an input": f"({X}, float[2] u) => ({Y})"
    "{ z = Conv (x, w) y = BatchNormalization (z, scale, shift, u, var) }",
    "it trains": f"({X}) => ({Y}, float[2] m, float[2] v)"
    "{ z = Conv (x, w) y, m, v = BatchNormalization <training_mode=1> (z, scale, shift, mean, var) }",
    "producer is no Conv": f"({X}) => ({Y}) {{ z = Relu (x) {BN} }}",
    "there is no producer": f"(float[1,2,4,4] z) => ({Y}) {{ {BN} }}",
    "variance is negative": f"({X}) => ({Y}) <float[2] u = {{-1.0, 1.0}}>"
    "{ z = Conv (x, w) y = BatchNormalization (z, scale, shift, mean, u) }",
    "producer is in an outer scope": f"({X}, bool c) => ({Y}) {{ z = Conv (x, w) y = If (c) <"
    "then_branch = t () => (float[P,Q,R,S] p) { p = BatchNormalization (z, scale, shift, mean, var) },"
    "else_branch = e () => (float[P,Q,R,S] q) { q = Identity (x) } > }",
    "Gemm scales": "(float[4,4] x) => (float[P,Q] y) <float[4,2] u = {1, 2, 3, 4, 5, 6, 7, 8}>"
    f"{{ z = Gemm <alpha=2.0> (x, u) {BN} }}",
    "Gemm's bias is a matrix": "(float[2,4] x) => (float[P,Q] y) <float[4,2] u = {1, 2, 3, 4, 5, 6, 7, 8},"
    f"float[2,2] m = {{1, 2, 3, 4}}> {{ z = Gemm (x, u, m) {BN} }}",
    "Gemm's bias is a column": "(float[2,4] x) => (float[P,Q] y) <float[4,2] u = {1, 2, 3, 4, 5, 6, 7, 8},"
    f"float[2,1] m = {{1, 2}}> {{ z = Gemm (x, u, m) {BN} }}",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_left_alone(text):
    model = build(f"agraph {text}", [tensor("w", 2, 2, 3, 3), *statistics(2)])
    before = ir.to_proto(model)
    onnx.checker.check_model(before)
    assert fold_batch_norm(model) == []
    assert ir.to_proto(model) == before
