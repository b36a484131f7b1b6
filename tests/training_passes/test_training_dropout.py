"""Dropout in training mode: masks that are as good as drawn, that repeat, and that CUDA can compute."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.targets import TARGETS
from amp_transpiler.targets.operator import operator_of
from amp_transpiler.training_passes import LowerDropout
from tests.support import open_ort, parse

SIGMAS = 5.5  # of a few hundred correlations none is further out, short of once in 10^5 test runs


def lowered(body, shape="N,M", dtype="float", opset=22, outputs="y, bool[] mask", ratio=0.5, training=True):
    """A lowered program; `ratio` and `yes` are constants of its `body`."""
    first, *others = outputs.split(", ")
    brackets = f"[{shape}]" if shape else ""
    declared = ", ".join([f"{dtype}{brackets} {first}", *(other.replace("[]", brackets) for other in others)])
    proto = parse(
        f"({dtype}{brackets} x, int64 seed, int64 step) => ({declared}) {{ {body} }}",
        opset=opset,
        ratio=np.float32(ratio),
        yes=np.bool_(training),
    )
    model = ir.from_proto(proto)
    propagate_types(model)
    count = LowerDropout(model.graph.inputs[1], model.graph.inputs[2])(model).count
    verify(model, "lowering dropout")
    return model, count


ONE = "[d] y, mask = Dropout (x, ratio, yes)"


def masks_of(shape, pairs, ratio=0.5, body=ONE):
    """Masks of a tensor of `shape` for pairs of seed and step."""
    names = "ABCDE"[: len(shape)]
    model, _ = lowered(body, ",".join(names), ratio=ratio)
    session = open_ort(ir.to_proto(model))
    feeds = {"x": np.ones(shape, np.float32)}
    return [session.run(["mask"], feeds | {"seed": np.array(s), "step": np.array(t)})[0] for s, t in pairs]


def standardized(mask, ratio):
    return (mask.astype(np.float64) - (1 - ratio)) / np.sqrt(ratio * (1 - ratio))


def sigmas(products):
    """How many standard deviations the mean of uncorrelated standardized numbers lies from zero."""
    return abs(float(products.mean())) * np.sqrt(products.size)


SHAPES = [(1000, 1000), (8, 125, 1000), (4, 8, 64, 512), (1000000,), (100000, 10)]


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("shape", SHAPES)
def test_rate_and_independence_of_neighbours(shape, ratio):
    (mask,) = masks_of(shape, [(1234, 7)], ratio)
    z = standardized(mask, ratio)
    assert sigmas(z) < SIGMAS
    for axis in range(len(shape)):
        for distance in (1, 2, 3, 4):
            if shape[axis] > 2 * distance:
                near = np.take(z, range(distance, shape[axis]), axis)
                far = np.take(z, range(shape[axis] - distance), axis)
                assert sigmas(near * far) < SIGMAS, (axis, distance)
    # Along several axes at once: what is a sum over the axes, hashed badly, shows in the corners of boxes.
    for axes in itertools.chain.from_iterable(itertools.combinations(range(len(shape)), n) for n in (2, 3)):
        corners = z
        for axis in axes:
            corners = np.take(corners, range(1, z.shape[axis]), axis) * np.take(corners, range(z.shape[axis] - 1), axis)
        assert sigmas(corners) < SIGMAS, axes


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_rows_columns_and_runs_of_eight_are_spread_as_chance_would(ratio):
    (mask,) = masks_of((1000, 1000), [(5, 3)], ratio)
    z = standardized(mask, ratio)
    for axis in (0, 1):
        squares = (z.sum(axis) / np.sqrt(1000)) ** 2  # chi-square with 1000 degrees of freedom
        assert abs(squares.sum() - 1000) < SIGMAS * np.sqrt(2000)
    patterns = np.bincount(np.packbits(mask[:, :1000].reshape(-1, 8), axis=1).ravel(), minlength=256)
    ones = np.array([i.bit_count() for i in range(256)])
    expected = patterns.sum() * (1 - ratio) ** ones * ratio ** (8 - ones)
    large = expected > 5
    chi_square = ((patterns - expected)[large] ** 2 / expected[large]).sum()
    degrees = large.sum()
    assert abs(chi_square - degrees) < SIGMAS * np.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, step) for step in range(6)],
        [(seed, 0) for seed in (0, 1, 2, -1, 2**31, 2**32, 2**33, 2**62)],
        [(1, 2), (2, 1), (0, 3), (3, 0)],
        [(9, step) for step in (1, 2**16, 2**31, 2**32 + 1)],
    ],
    ids=["steps", "seeds", "exchanged", "large steps"],
)
def test_masks_of_other_seeds_and_steps_are_independent(pairs):
    masks = [standardized(mask, 0.5) for mask in masks_of((500, 400), pairs)]
    for first_mask, other in itertools.combinations(masks, 2):
        assert sigmas(first_mask * other) < SIGMAS
        assert sigmas(first_mask[1:] * other[:-1]) < SIGMAS
        assert sigmas(first_mask[:, 1:] * other[:, :-1]) < SIGMAS


def test_the_mean_over_steps_of_each_element_is_the_rate():
    pairs = [(42, step) for step in range(400)]
    means = np.mean(masks_of((20, 50), pairs, 0.25), axis=0)
    z = (means - 0.75) / np.sqrt(0.25 * 0.75 / len(pairs))
    assert abs(z).max() < SIGMAS
    assert abs((z**2).sum() - 1000) < SIGMAS * np.sqrt(2000)


def test_nodes_draw_apart_and_equal_inputs_repeat(run):
    body = "[one] a, ma = Dropout (x, ratio, yes) [two] b, mb = Dropout (x, ratio, yes)"
    model, count = lowered(body, "N,M", outputs="a, bool[] ma, bool[] mb")
    assert count == 2
    feeds = {"x": np.ones((500, 500), np.float32), "seed": np.array(3), "step": np.array(4)}
    _, first, two = run(model, feeds)
    assert sigmas(standardized(first, 0.5) * standardized(two, 0.5)) < SIGMAS
    np.testing.assert_array_equal(run(model, feeds)[1], first)


def test_the_mask_hangs_on_the_name_of_its_node_and_on_no_other_node():
    (alone,) = masks_of((30, 40), [(3, 4)])
    (beside,) = masks_of((30, 40), [(3, 4)], body=f"[first] h = Dropout (x, ratio, yes) {ONE}")
    (renamed,) = masks_of((30, 40), [(3, 4)], body=ONE.replace("[d]", "[e]"))
    np.testing.assert_array_equal(alone, beside)
    assert (alone != renamed).any()


@pytest.mark.parametrize("shape", [(30, 40), (1, 40), (30, 1), (1, 1), (7,), ()])
def test_static_and_symbolic_shapes_draw_alike(run, shape):
    feeds = {"x": np.ones(shape, np.float32), "seed": np.array(3), "step": np.array(4)}
    static, _ = lowered(ONE, ",".join(map(str, shape)))
    draws = [run(static, feeds)[1]]
    assert draws[0].shape == shape
    assert not any(node.op_type == "Shape" for node in static.graph)
    if 1 not in shape and shape:  # a size of 1 that is known is not hashed
        symbolic, _ = lowered(ONE, ",".join("ABC"[: len(shape)]))
        np.testing.assert_array_equal(run(symbolic, feeds)[1], draws[0])


@pytest.mark.parametrize(("dtype", "numpy"), [("float", np.float32), ("float16", np.float16), ("double", np.float64)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_values(run, dtype, numpy, ratio):
    model, _ = lowered(ONE, dtype=dtype, ratio=ratio)
    x = np.random.default_rng(0).normal(size=(40, 50)).astype(numpy)
    x[0] = np.inf
    y, mask = run(model, {"x": x, "seed": np.array(1), "step": np.array(2)})
    assert y.dtype == numpy
    with np.errstate(divide="ignore"):
        scaled_values = (x.astype(np.float64) / (1 - ratio)).astype(numpy)
    np.testing.assert_allclose(y, np.where(mask, scaled_values, 0), rtol=1e-3 if numpy == np.float16 else 1e-6)
    assert mask.any() == (ratio < 1)
    assert not mask.all()


@pytest.mark.parametrize("opset", [13, 18, 21, 22])
@pytest.mark.parametrize(
    ("body", "ratio", "training"),
    [(ONE, 0.0, True), (ONE, 0.5, False), ("y, mask = Dropout (x, ratio)", 0.5, True)],
    ids=["ratio 0", "not training", "no mode"],
)
def test_what_drops_nothing_becomes_identity(run, body, ratio, training, opset):
    model, count = lowered(body, ratio=ratio, training=training, opset=opset)
    assert count == 1
    assert "Dropout" not in {node.op_type for node in model.graph}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, mask = run(model, {"x": x, "seed": np.array(1), "step": np.array(2)})
    np.testing.assert_array_equal(y, x)
    assert mask.shape == x.shape
    assert mask.all()


def test_the_ratio_is_a_half_where_it_is_absent():
    (mask,) = masks_of((500, 400), [(1, 1)], body="[d] y, mask = Dropout (x, , yes)")
    assert abs(mask.mean() - 0.5) < 0.01


@pytest.mark.parametrize("opset", [21, 22])
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize(("ratio", "provider"), [(0.1, "cuda"), (0.0, "cuda"), (0.1, "cpu")])
def test_every_operator_has_a_kernel(dtype, opset, ratio, provider):
    model, _ = lowered(ONE, "N,8,4", dtype=dtype, opset=opset, ratio=ratio)
    for node in model.graph:
        operator = operator_of(node, (("", opset),))
        if provider == "cpu" and any("float16" in (text or "") for text in (*operator.inputs, *operator.outputs)):
            continue  # run emulated
        assert TARGETS[provider].has_kernel(operator), operator


def test_inside_a_body(run):
    text = """(float[50,60] x, bool c, int64 seed, int64 step) => (float[50,60] y) {
        y = If (c) <
            then_branch = a () => (float[50,60] p) { [in_if] p = Dropout (x, ratio, yes) },
            else_branch = b () => (float[50,60] q) { q = Neg (x) }
        >
    }"""
    model = ir.from_proto(parse(text, opset=22, ratio=np.float32(0.5), yes=np.bool_(True)))
    propagate_types(model)
    assert LowerDropout(model.graph.inputs[2], model.graph.inputs[3])(model).count == 1
    feeds = {"x": np.ones((50, 60), np.float32), "c": np.array(True), "seed": np.array(1), "step": np.array(2)}
    (y,) = run(model, feeds)
    assert set(np.unique(y)) == {0.0, 2.0}
    np.testing.assert_array_equal(run(model, feeds | {"c": np.array(False)})[0], -feeds["x"])


def test_a_mode_known_at_run_time_only_is_left_alone_and_logged(caplog):
    text = "(float[4] x, bool t, int64 seed, int64 step) => (float[4] y) { [d] y = Dropout (x, ratio, t) }"
    model = ir.from_proto(parse(text, opset=21, ratio=np.float32(0.5)))
    propagate_types(model)
    assert LowerDropout(model.graph.inputs[2], model.graph.inputs[3])(model).count == 0
    assert "'d' is left alone" in caplog.text


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_an_impossible_ratio_is_an_error(ratio):
    with pytest.raises(ModelError, match="between 0 and 1"):
        lowered(ONE, ratio=ratio)
