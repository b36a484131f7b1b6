"""Gradients of Conv and ConvTranspose."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
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
BATCH = 2


def random(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def dims(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def text(
    operator: str, x: tuple[int, ...], w: tuple[int, ...], bias: int, attributes: str, dtype: str = "float"
) -> str:
    """The model with a symbolic batch; `x` is the shape of the input without it."""
    extra, use = (f", {dtype}[{bias}] c", ", c") if bias else ("", "")
    body = f"y = {operator} <{attributes}> (x, w{use})" if attributes else f"y = {operator} (x, w{use})"
    return f"""<ir_version: 10, opset_import: ["" : 22]>
        g ({dtype}[batch,{dims(x)}] x, {dtype}[{dims(w)}] w{extra})
        => ({dtype}[batch,{",".join("a" * len(x))}] y) {{ {body} }}"""


def feeds(x: tuple[int, ...], w: tuple[int, ...], bias: int) -> dict[str, np.ndarray]:
    drawn = {"x": random(BATCH, *x), "w": random(*w)}
    return {**drawn, "c": random(bias)} if bias else drawn


# x without batch, w, bias, strides, pads (begin, end), dilations, group
CONVS = [
    ((3, 9), (4, 3, 3), 4, [2], [1, 1], [1], 1),
    ((2, 10), (4, 1, 3), 0, [3], [0, 2], [2], 2),
    ((3, 6, 7), (4, 3, 3, 3), 4, [1, 1], [1, 1, 1, 1], [1, 1], 1),
    ((3, 8, 7), (4, 3, 3, 3), 4, [2, 2], [1, 1, 1, 1], [1, 1], 1),  # one row of x is not reached
    ((3, 9, 10), (5, 3, 1, 1), 5, [1, 1], [0, 0, 0, 0], [1, 1], 1),
    ((3, 9, 10), (5, 3, 1, 1), 5, [2, 3], [0, 0, 0, 0], [1, 1], 1),
    ((4, 5, 5), (6, 2, 1, 1), 6, [1, 1], [0, 0, 0, 0], [1, 1], 2),
    ((3, 5, 5), (2, 3, 1, 1), 0, [2, 2], [1, 1, 1, 1], [1, 1], 1),
    ((4, 7, 7), (4, 1, 3, 3), 4, [1, 1], [1, 1, 1, 1], [1, 1], 4),  # depthwise
    ((4, 8, 8), (8, 1, 3, 3), 0, [2, 2], [1, 1, 1, 1], [1, 1], 4),  # depthwise with a multiplier
    ((4, 9, 9), (6, 2, 3, 2), 6, [2, 1], [2, 0, 1, 1], [1, 2], 2),  # asymmetric
    ((2, 11, 11), (3, 2, 3, 3), 3, [3, 3], [0, 1, 2, 0], [2, 3], 1),
    ((2, 9, 9), (3, 2, 4, 4), 3, [4, 4], [1, 0, 0, 0], [1, 1], 1),  # more left over than padded
    ((3, 14, 14), (4, 3, 7, 7), 0, [2, 2], [3, 3, 3, 3], [1, 1], 1),
    ((2, 4, 5, 6), (4, 2, 2, 3, 3), 4, [1, 2, 2], [0, 1, 1, 1, 1, 1], [1, 1, 1], 1),
    ((4, 5, 5, 5), (4, 2, 3, 3, 3), 4, [2, 2, 1], [1, 0, 2, 1, 1, 1], [1, 1, 2], 2),
]


def of(strides, pads, dilations, group) -> str:
    return f"strides = {strides}, pads = {pads}, dilations = {dilations}, group = {group}"


def torch_conv(x, w, c=None, *, strides, pads, dilations, group):
    import torch.nn.functional as f

    rank = len(strides)
    around = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[rank + axis])]
    function = [f.conv1d, f.conv2d, f.conv3d][rank - 1]
    return function(f.pad(x, around), w, c, stride=strides, dilation=dilations, groups=group)


@needs_torch
@pytest.mark.parametrize(("x", "w", "bias", "strides", "pads", "dilations", "group"), CONVS)
def test_conv(x, w, bias, strides, pads, dilations, group):
    def function(**tensors):
        return torch_conv(**tensors, strides=strides, pads=pads, dilations=dilations, group=group)

    check_by_torch(text("Conv", x, w, bias, of(strides, pads, dilations, group)), feeds(x, w, bias), function)


PADS_RIGHT = needs_onnx("1.23", "the older reference evaluator pads a strided Conv wrongly")
# x without batch, w, attributes
AUTO_PADS = [
    ((1, 5), (2, 1, 2), 'auto_pad = "SAME_UPPER"'),
    ((1, 5), (2, 1, 2), 'auto_pad = "SAME_LOWER"'),
    ((2, 6, 5), (2, 1, 4, 3), 'auto_pad = "SAME_UPPER", strides = [2, 1], group = 2'),
    pytest.param((2, 6, 5), (2, 1, 4, 3), 'auto_pad = "SAME_LOWER", strides = [2, 1], group = 2', marks=PADS_RIGHT),
    pytest.param((1, 6, 5), (1, 1, 3, 2), 'auto_pad = "VALID", strides = [2, 2]', marks=PADS_RIGHT),
    ((1, 5, 4), (1, 1, 2, 2), ""),
]


@pytest.mark.parametrize(("x", "w", "attributes"), AUTO_PADS)
def test_conv_against_differences(x, w, attributes):
    check_by_differences(text("Conv", x, w, w[0], attributes), feeds(x, w, w[0]))


# x without batch, w [C, M/G, ...], bias, strides, pads (the same on both ends), dilations, group, output_padding
TRANSPOSED = [
    ((3, 5), (3, 2, 3), 2, [2], [1], [1], 1, [1]),
    ((3, 4, 5), (3, 2, 3, 3), 2, [1, 1], [0, 0], [1, 1], 1, [0, 0]),
    ((3, 4, 5), (3, 2, 4, 4), 2, [2, 2], [1, 1], [1, 1], 1, [0, 0]),
    ((4, 4, 3), (4, 3, 3, 2), 6, [3, 2], [1, 0], [1, 2], 2, [2, 1]),
    ((4, 4, 3), (4, 1, 3, 3), 4, [2, 2], [1, 1], [1, 1], 4, [1, 1]),
    ((3, 4, 3), (3, 2, 2, 2), 2, [1, 2], [0, 0], [3, 3], 1, [0, 1]),
    ((3, 4, 3), (3, 2, 1, 1), 0, [1, 1], [0, 0], [1, 1], 1, [0, 0]),
    ((3, 4, 3), (3, 2, 1, 1), 0, [2, 2], [0, 0], [1, 1], 1, [1, 1]),
    ((2, 2, 3, 3), (2, 2, 3, 2, 3), 2, [2, 1, 2], [1, 0, 1], [1, 1, 1], 1, [1, 0, 0]),
]


@needs_torch
@pytest.mark.parametrize(("x", "w", "bias", "strides", "pads", "dilations", "group", "more"), TRANSPOSED)
def test_conv_transpose(x, w, bias, strides, pads, dilations, group, more):
    def function(x, w, c=None):
        import torch.nn.functional as f

        transposed = [f.conv_transpose1d, f.conv_transpose2d, f.conv_transpose3d][len(strides) - 1]
        return transposed(x, w, c, strides, pads, more, group, dilations)

    attributes = f"{of(strides, pads + pads, dilations, group)}, output_padding = {more}"
    check_by_torch(text("ConvTranspose", x, w, bias, attributes), feeds(x, w, bias), function)


@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [1, 0, 0, 2], strides = [2, 2], output_padding = [0, 1]",
        "output_shape = [7, 9], strides = [2, 2]",
        "output_shape = [6, 6], strides = [2, 2]",
        'output_shape = [6, 6], strides = [2, 2], auto_pad = "SAME_UPPER"',
        'output_shape = [6, 6], strides = [2, 2], auto_pad = "SAME_LOWER"',
        'strides = [2, 2], auto_pad = "SAME_UPPER"',
        'strides = [2, 2], auto_pad = "SAME_LOWER"',
        'strides = [2, 2], auto_pad = "VALID"',
    ],
)
def test_paddings_of_conv_transpose(attributes):
    """Forward and backward are adjoint: <g, y(x)> is <dX, x> and <dW, w>, both by ONNX Runtime."""
    x, w = (2, 3, 3), (2, 2, 3, 4)
    model = onnx.parser.parse_model(text("ConvTranspose", x, w, 0, attributes))
    fed = feeds(x, w, 0)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    slopes, seeds = run_gradients(model, fed)
    y = session.run(None, fed)[0]
    for direction in range(3):
        for name in ("x", "w"):
            moved = {**fed, name: random(*fed[name].shape)}
            want = float(np.sum(session.run(None, moved)[0] * seeds["y"]))
            assert np.sum(slopes[name] * moved[name]) == pytest.approx(want, rel=1e-4, abs=1e-4), (
                direction,
                name,
                y.shape,
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_element_types_fit(operator, dtype, case):
    x, w, bias, strides, pads, dilations, group = case
    if operator == "ConvTranspose":
        x, bias = (w[0], *x[1:]), w[1] * group if bias else 0
    source = text(operator, x, w, bias, of(strides, pads, dilations, group), dtype)
    backward, names = gradient_model(onnx.parser.parse_model(source))
    assert names == ["x", "w", "c"][: 3 if bias else 2]
    types = {o.name: o.type.tensor_type.elem_type for o in backward.graph.output}
    assert len(set(types.values())) == 1


@pytest.mark.parametrize(
    ("strides", "pads", "group", "want"),
    [
        ([1, 1], [1, 1, 1, 1], 1, True),
        ([1, 1], [0, 1, 2, 1], 2, True),
        ([2, 2], [1, 1, 1, 1], 1, False),
        ([1, 1], [3, 3, 3, 3], 1, False),
    ],
)
def test_bfloat16_goes_by_conv_where_it_can(strides, pads, group, want):
    """CUDA has no bfloat16 ConvTranspose; with the types put to float32 the graph computes the same."""
    x, w = (4, 6, 5), (6, 4 // group, 3, 3)
    source = text("Conv", x, w, 0, of(strides, pads, [1, 1], group))
    backward, _ = gradient_model(onnx.parser.parse_model(source.replace("float[", "bfloat16[")))
    assert any(node.op_type == "ConvTranspose" for node in backward.graph.node) is not want
    for declared in [*backward.graph.input, *backward.graph.output]:
        declared.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in backward.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = onnx.TensorProto.FLOAT
    del backward.graph.value_info[:]
    fed = feeds(x, w, 0)
    direct, seeds = run_gradients(onnx.parser.parse_model(source), fed)
    session = onnxruntime.InferenceSession(backward.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(["grad_x", "grad_w"], {**fed, "y__seed": seeds["y"].astype("f")})
    np.testing.assert_allclose(got[0], direct["x"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], direct["w"], rtol=1e-4, atol=1e-4)


def test_unknown_channels_are_an_error():
    source = text("Conv", ("h", "v", "u"), (2, 1, 3, 3), 0, "")
    with pytest.raises(ModelError, match="must be known numbers"):
        gradient_model(onnx.parser.parse_model(source))
