"""Gradients of operators that move elements, Slice and Pad included."""

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
from tests.autodiff.graph_text import assert_low_is_well_typed, graph, numbers, tensor

RANDOM = np.random.default_rng(1)


def some(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


# body and constants of a graph that reads x; the shape of x
ONE_INPUT = {
    "reshape": ("y = Reshape(x, s)", numbers("s", [4, -1]), (2, 2, 3)),
    "reshape to scalar": ("y = Reshape(x, s)", "int64[0] s = {}", (1, 1)),
    "flatten": ("y = Flatten<axis=2>(x)", "", (2, 2, 3)),
    "flatten negative": ("y = Flatten<axis=-1>(x)", "", (2, 2, 3)),
    "squeeze": ("y = Squeeze(x, s)", numbers("s", [-1]), (1, 3, 1)),
    "squeeze all": ("y = Squeeze(x)", "", (2, 1, 1)),
    "unsqueeze": ("y = Unsqueeze(x, s)", numbers("s", [0, -1]), (2, 3)),
    "transpose": ("y = Transpose<perm=[2,0,1]>(x)", "", (2, 3, 4)),
    "transpose reversed": ("y = Transpose(x)", "", (2, 3, 4)),
    "expand": ("y = Expand(x, s)", numbers("s", [2, 3, 4]), (3, 1)),
    "expand by one": ("y = Expand(x, s)", numbers("s", [1, 1]), (2, 3)),
    "tile": ("y = Tile(x, s)", numbers("s", [2, 1, 3]), (2, 2, 3)),
    "trilu": ("y = Trilu(x)", "", (2, 3, 4)),
    "trilu lower": ("y = Trilu<upper=0>(x, k)", "int64 k = {1}", (3, 4)),
    "cumsum": ("y = CumSum(x, k)", "int64 k = {1}", (2, 4)),
    "cumsum exclusive": ("y = CumSum<exclusive=1>(x, k)", "int64 k = {-2}", (3, 4)),
    "cumsum reverse": ("y = CumSum<reverse=1>(x, k)", "int64 k = {0}", (3, 2)),
    "cumsum both": ("y = CumSum<reverse=1, exclusive=1>(x, k)", "int64 k = {1}", (2, 4)),
    "reverse sequence": ("y = ReverseSequence<batch_axis=0, time_axis=1>(x, k)", numbers("k", [1, 3]), (2, 4)),
    "concat with itself": ("y = Concat<axis=-1>(x, x)", "", (2, 3)),
    "concat of one": ("y = Concat<axis=0>(x)", "", (2, 3)),
}


@pytest.mark.parametrize(("body", "constants", "shape"), ONE_INPUT.values(), ids=ONE_INPUT)
@pytest.mark.parametrize("symbolic", [False, True])
def test_moves(body, constants, shape, symbolic):
    symbolic = symbolic and "Squeeze(x)" not in body  # what that gives has no rank then
    known = ("N", *shape[1:]) if symbolic else shape
    check_by_differences(graph(f"{tensor(known)} x", body, constants=constants), {"x": some(*shape)})


@pytest.mark.parametrize("name", [name for name in ONE_INPUT if name not in ("squeeze all", "reverse sequence")])
def test_moves_of_low_types_are_well_typed(name):
    body, constants, shape = ONE_INPUT[name]
    assert_low_is_well_typed(graph(f"{tensor(('N', *shape[1:]))} x", body, constants=constants))
    assert_low_is_well_typed(graph(f"{tensor(shape)} x", body, constants=constants))


@pytest.mark.parametrize("axis", [1, -2, 2])
@pytest.mark.parametrize("size", [2, "M"])
def test_concat(axis, size):
    shapes = {"a": [2, 3, 2], "b": [2, 3, 2], "c": [2, 3, 2]}
    for more, name in enumerate(shapes):
        shapes[name][axis] += more
    declared = {name: [size if i == 0 else s for i, s in enumerate(shape)] for name, shape in shapes.items()}
    inputs = ", ".join(f"{tensor(shape)} {name}" for name, shape in declared.items())
    feeds = {name: some(*shape) for name, shape in shapes.items()}
    check_by_differences(graph(inputs, f"y = Concat<axis={axis}>(a, b, c)"), feeds)


def test_concat_along_an_axis_of_unknown_size():
    text = graph("float[A,2] a, float[B,2] b", "y = Concat<axis=0>(a, b)")
    check_by_differences(text, {"a": some(3, 2), "b": some(1, 2)})
    assert_low_is_well_typed(text)


@pytest.mark.parametrize("first", [4, "N"])
@pytest.mark.parametrize(
    ("body", "constants", "outputs"),
    [
        ("a, b, c = Split<axis=1>(x, s)", numbers("s", [1, 2, 3]), "a b c"),
        ("a, b, c = Split<axis=-1, num_outputs=3>(x)", "", "a b c"),
        ("a, b, c = Split<axis=1>(x, s)", numbers("s", [1, 2, 3]), "b"),
        ("a, b = Split<axis=0, num_outputs=2>(x)", "", "a"),
    ],
)
def test_split(body, constants, outputs, first):
    declared = ", ".join(f"float {name}" for name in outputs.split())
    text = graph(f"float[{first},6] x", body, outputs=declared, constants=constants)
    check_by_differences(text, {"x": some(4, 6)})
    assert_low_is_well_typed(text)


def test_split_into_uneven_parts():
    text = graph("float[N,7] x", "a, b, c, d = Split<axis=1, num_outputs=4>(x)", outputs="float b, float d")
    check_by_differences(text, {"x": some(2, 7)})


SLICES = [
    ([1], [3], [1], [1]),
    ([0, 1], [2, -1], [0, 2], [1, 1]),
    ([-3], [2**60], [-1], [1]),
    ([1], [5], [2], [2]),
    ([0], [5], [2], [2]),
    ([0], [4], [2], [3]),
    ([-1], [-(2**60)], [2], [-1]),
    ([4], [0], [2], [-2]),
    ([3], [-100], [2], [-3]),
    ([-1, 4], [-100, 0], [1, 2], [-2, -1]),
    ([4], [5], [2], [3]),
    ([2], [1], [2], [1]),
    ([-100], [100], [1], [1]),
    ([9], [-9], [2], [-1]),
    ([9], [-9], [2], [-2]),
]


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
@pytest.mark.parametrize("shape", [(2, 4, 5), ("N", 4, 5), ("N", "M", "K")])
def test_slice(starts, ends, axes, steps, shape):
    parts = zip(("starts", "ends", "axes", "steps"), (starts, ends, axes, steps), strict=True)
    held = ", ".join(numbers(name, part) for name, part in parts)
    text = graph(f"{tensor(shape)} x", "y = Slice(x, starts, ends, axes, steps)", constants=held)
    check_by_differences(text, {"x": some(2, 4, 5)})
    assert_low_is_well_typed(text)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_slice_with_bounds_known_when_it_is_run(step):
    held = f"{numbers('axes', [1])}, {numbers('steps', [step])}"
    text = graph(
        "float[N,5] x, int64[1] starts, int64[1] ends", "y = Slice(x, starts, ends, axes, steps)", constants=held
    )
    starts, ends = (1, -1) if step > 0 else (-1, 1)
    feeds = {"x": some(2, 5), "starts": np.array([starts]), "ends": np.array([ends])}
    check_by_differences(text, feeds)


# What is left out, and what is known only when it is run: (inputs of Slice, those that are fed)
PARTIAL = {
    "no steps": ("starts, ends, axes", ""),
    "no axes, no steps": ("starts, ends", ""),
    "no axes, but steps": ("starts, ends, , steps", ""),
    "no axes, but steps, one start fed": ("starts, ends, , steps", "starts"),
    "starts fed": ("starts, ends, axes", "starts"),
    "ends fed": ("starts, ends, axes", "ends"),
    "starts and ends fed, no axes": ("starts, ends", "starts ends"),
    "axes fed": ("starts, ends, axes", "axes"),
    "axes fed, steps said": ("starts, ends, axes, steps", "axes"),
    "starts fed, steps said": ("starts, ends, axes, steps", "starts"),
    "ends fed, steps said": ("starts, ends, axes, steps", "ends"),
    "axes and steps fed": ("starts, ends, axes, steps", "axes steps"),
    "steps fed": ("starts, ends, axes, steps", "steps"),
    "everything fed": ("starts, ends, axes, steps", "starts ends axes steps"),
}
NUMBERS = [
    {"starts": [1, 0], "ends": [3, -1], "axes": [0, 1], "steps": [1, 1]},
    {"starts": [-3, -2], "ends": [4, 100], "axes": [0, 1], "steps": [1, 1]},
    {"starts": [0, 1], "ends": [4, 5], "axes": [0, 1], "steps": [2, 3]},
    {"starts": [-1, -100], "ends": [-100, 2], "axes": [0, 1], "steps": [-1, 1]},
]


@pytest.mark.parametrize("last", [5, "N"])
@pytest.mark.parametrize("values", NUMBERS)
@pytest.mark.parametrize("name", PARTIAL)
def test_slice_with_some_inputs(name, values, last):
    call, fed = PARTIAL[name]
    if "steps" not in call:
        values = {**values, "starts": [1, -2], "ends": [-1, 100]}
    held = ", ".join(numbers(part, values[part]) for part in values if part in call and part not in fed)
    inputs = "".join(f", int64[2] {part}" for part in fed.split())
    text = graph(f"float[4,{last}] x{inputs}", f"y = Slice(x, {call})", constants=held)
    check_by_differences(text, {"x": some(4, 5), **{part: np.array(values[part]) for part in fed.split()}})


UNIT = [([2], [4]), ([-2], [100]), ([-100], [-1]), ([100], [200]), ([4], [2]), ([0], [5])]


@pytest.mark.parametrize(("starts", "ends"), UNIT)
@pytest.mark.parametrize("element", ["int32", "int64"])
def test_slice_of_step_1_with_bounds_known_when_it_is_run(starts, ends, element):
    """Padded, not scattered: the start counts from the end if negative, and both are clamped."""
    text = graph(
        f"float[N,5] x, {element}[1] starts, {element}[1] ends",
        "y = Slice(x, starts, ends, axes)",
        constants=f"{element}[1] axes = {{-1}}",
    )
    feeds = {"x": some(2, 5), "starts": np.array(starts, element), "ends": np.array(ends, element)}
    check_by_differences(text, feeds)
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    assert "Pad" in {node.op_type for node in backward.graph.node}
    assert "Range" not in {node.op_type for node in backward.graph.node}


def test_slice_of_a_value_of_unknown_rank():
    """Its positions are sliced in the same way, since no axis has a known size."""
    body = "r = Reshape(x, s) t = Slice(r, a, b, a) y = Reshape(t, flat)"
    held = "int64[1] a = {0}, int64[1] b = {1}, int64[1] flat = {-1}"
    text = graph("float[4,5] x, int64[R] s", body, constants=held)
    check_by_differences(text, {"x": some(4, 5), "s": np.array([2, 10])})


def test_slice_without_axes():
    held = f"{numbers('starts', [0, 1])}, {numbers('ends', [1, 3])}"
    check_by_differences(graph("float[N,4] x", "y = Slice(x, starts, ends)", constants=held), {"x": some(3, 4)})


def test_pads_of_slices_need_no_scatter():
    held = f"{numbers('starts', [1])}, {numbers('ends', [3])}, {numbers('axes', [1])}, {numbers('steps', [2])}"
    text = graph("float[N,4] x", "y = Slice(x, starts, ends, axes, steps)", constants=held)
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    assert {node.op_type for node in backward.graph.node}.isdisjoint({"ScatterElements", "ScatterND"})


FEW_NODES = {
    # name: (starts, ends, step of the last axis of 5; operators of the gradient)
    "neighbours": (1, 3, 1, ["Pad"]),
    "all": (0, 5, 1, []),
    "one, with a step": (4, 5, 3, ["Pad"]),
    "the last, backwards": (-1, -2, -1, ["Slice", "Pad"]),
    "every second": (0, 5, 2, ["Unsqueeze", "Pad", "Reshape", "Slice"]),
    "nothing": (3, 3, 1, ["ConstantOfShape"]),
}


@pytest.mark.parametrize("name", FEW_NODES)
def test_gradients_of_slices_have_no_needless_nodes(name):
    start, end, step, expected = FEW_NODES[name]
    parts = {"starts": start, "ends": end, "axes": 1, "steps": step}
    held = ", ".join(numbers(part, [value]) for part, value in parts.items())
    text = graph("float[2,5] x", "y = Slice(x, starts, ends, axes, steps)", constants=held)
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    operators = [node.op_type for node in backward.graph.node if node.op_type not in ("Constant", "Identity")][1:]
    assert operators == expected


FEW_NODES_OF_PADS = {
    # name: (mode, widths of the last axis; operators of the gradient)
    "nothing": ("constant", (0, 0), []),
    "in front": ("constant", (2, 0), ["Slice"]),
    "cut off behind": ("constant", (0, -2), ["Pad"]),
    "both": ("constant", (1, -2), ["Slice", "Pad"]),
    "edge, nothing": ("edge", (0, 0), []),
    "edge, behind": ("edge", (0, 2), ["Slice", "Slice", "ReduceSum", "Pad", "Add"]),
}


@pytest.mark.parametrize("name", FEW_NODES_OF_PADS)
def test_gradients_of_pads_have_no_needless_nodes(name):
    mode, (before, after), expected = FEW_NODES_OF_PADS[name]
    text = graph("float[2,5] x", f'y = Pad<mode="{mode}">(x, p)', constants=numbers("p", [0, before, 0, after]))
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    operators = [node.op_type for node in backward.graph.node if node.op_type not in ("Constant", "Identity")][1:]
    assert operators == expected


PADS = [
    ("constant", [0, 1, 0, 2]),
    ("constant", [1, 0, 0, 0]),
    ("constant", [0, 0, 0, 0]),
    ("reflect", [0, 2, 0, 3]),
    ("reflect", [1, 3, 0, 0]),
    ("edge", [0, 2, 0, 3]),
    ("edge", [2, 0, 1, 1]),
    ("wrap", [0, 2, 0, 3]),
    ("wrap", [1, 4, 1, 0]),
]


@pytest.mark.parametrize(("mode", "pads"), PADS)
@pytest.mark.parametrize("first", [2, "N"])
def test_pad(mode, pads, first):
    if mode != "constant" and first == "N" and (pads[0] or pads[2]):
        pads = [0, pads[1], 0, pads[3] or 1]
    text = graph(f"float[{first},4] x", f'y = Pad<mode="{mode}">(x, p)', constants=numbers("p", pads))
    check_by_differences(text, {"x": some(2, 4)})
    assert_low_is_well_typed(text)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pad_of_some_axes_only(mode):
    held = f"{numbers('p', [1, 2])}, {numbers('axes', [-1])}"
    text = graph("float[N,4] x", f'y = Pad<mode="{mode}">(x, p, , axes)', constants=held)
    check_by_differences(text, {"x": some(2, 4)})


PARTIAL_PADS = {
    # name: (call, constants, numpy's padding of a 4 x 5 array, mode)
    "one axis, from the front": ("x, p, , axes", f"{numbers('p', [2, 1])}, {numbers('axes', [0])}", ((2, 1), (0, 0))),
    "both axes, turned around": (
        "x, p, , axes",
        f"{numbers('p', [1, 2, 3, 0])}, {numbers('axes', [1, 0])}",
        ((2, 0), (1, 3)),
    ),
    "no axes": ("x, p", numbers("p", [1, 0, 0, 2]), ((1, 0), (0, 2))),
    "only behind": ("x, p", numbers("p", [0, 0, 3, 0]), ((0, 3), (0, 0))),
    "nothing": ("x, p, , axes", f"{numbers('p', [0, 0])}, {numbers('axes', [1])}", ((0, 0), (0, 0))),
}


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("name", PARTIAL_PADS)
def test_pad_of_some_axes_against_numpy(name, mode):
    """The gradient of a copy is the sum over where it went: numpy pads the positions themselves."""
    call, held, widths = PARTIAL_PADS[name]
    text = graph("float[4,5] x", f'y = Pad<mode="{mode}">({call})', constants=held)
    slopes, seeds = run_gradients(onnx.parser.parse_model(text), {"x": some(4, 5)})
    positions = np.pad(np.arange(1, 21).reshape(4, 5), widths, mode)  # 0 is the constant
    want = np.zeros(21)
    np.add.at(want, positions, seeds["y"])
    assert np.allclose(slopes["x"], want[1:].reshape(4, 5), atol=1e-5)


NEGATIVE = [
    ("constant", [0, -1, 0, 2]),
    ("constant", [-1, -1, -2, -3]),
    ("reflect", [0, -1, 0, 2]),
    ("edge", [-2, 1, 1, -1]),
    ("edge", [0, -4, 0, 1]),
    ("wrap", [1, -1, 0, -1]),
]


@pytest.mark.parametrize(("mode", "pads"), NEGATIVE)
def test_negative_pads_of_every_mode(mode, pads):
    text = graph("float[4,5] x", f'y = Pad<mode="{mode}">(x, p)', constants=numbers("p", pads))
    slopes, seeds = run_gradients(onnx.parser.parse_model(text), {"x": some(4, 5)})
    positions = np.arange(1, 21).reshape(4, 5)
    (top, left), (bottom, right) = pads[:2], pads[2:]
    positions = positions[max(-top, 0) : 4 - max(-bottom, 0), max(-left, 0) : 5 - max(-right, 0)]
    positions = np.pad(positions, ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))), mode)
    want = np.zeros(21)
    np.add.at(want, positions, seeds["y"])
    assert np.allclose(slopes["x"], want[1:].reshape(4, 5), atol=1e-5)


@pytest.mark.parametrize("first", [2, "N"])
def test_negative_pads_cut_off(first):
    text = graph(f"float[{first},4] x", "y = Pad(x, p)", constants=numbers("p", [0, -1, 1, 2]))
    slopes, seeds = run_gradients(onnx.parser.parse_model(text), {"x": some(2, 4)})
    want = np.pad(seeds["y"][:2, :3], [(0, 0), (1, 0)])
    assert np.allclose(slopes["x"], want)


def test_the_value_that_is_padded_with():
    text = graph("float[N,4] x, float v", "y = Pad(x, p, v)", constants=numbers("p", [0, 1, 1, 2]))
    check_by_differences(text, {"x": some(2, 4), "v": np.array(0.3, "f")})
    assert_low_is_well_typed(text)


def test_borders_of_an_axis_of_unknown_size_are_refused():
    text = graph("float[N,4] x", 'y = Pad<mode="edge">(x, p)', constants=numbers("p", [1, 0, 0, 0]))
    with pytest.raises(ModelError, match=r"Pad, opset 21\): mode 'edge' pads axis 0"):
        check_by_differences(text, {"x": some(2, 4)})


@needs_torch
@pytest.mark.parametrize(
    ("body", "held", "function"),
    [
        ("y = Transpose<perm=[1,0]>(x)", "", lambda x: x.transpose(0, 1)),
        ("y = Tile(x, s)", numbers("s", [2, 3]), lambda x: x.repeat(2, 3)),
        ("y = CumSum(x, k)", "int64 k = {1}", lambda x: x.cumsum(1)),
        ("y = Trilu(x)", "", lambda x: x.triu()),
        (
            "y = Slice(x, a, b, c, d)",
            "int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {1}, int64[1] d = {3}",
            lambda x: x[:, ::3],
        ),
        ('y = Pad<mode="reflect">(x, p)', numbers("p", [0, 2, 0, 1]), lambda x: x[:, [2, 1, 0, 1, 2, 3, 2]]),
    ],
)
def test_moves_by_torch(body, held, function):
    check_by_torch(graph("float[N,4] x", body, constants=held), {"x": some(3, 4)}, function)
