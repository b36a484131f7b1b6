"""Gradients of Resize and Upsample."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from amp_transpiler.autodiff.interpolation import AxisResize, resize_matrix
from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    run_gradients,
)

RANDOM = np.random.default_rng(0)


def text(size, attributes, *, scales=(), sizes=(), roi=(), dtype="float", opset=19, channels=2) -> str:
    """A Resize of [batch, channels, *size]."""
    shape = ",".join(map(str, size))
    target = (
        f"int64[{len(sizes)}] s = {{{','.join(map(str, sizes))}}}"
        if sizes
        else f"float[{len(scales)}] s = {floats(scales)}"
    )
    region = f", float[{len(roi)}] r = {floats(roi)}" if roi else ""
    inputs = f"x, {'r' if roi else ''}, {', s' if sizes else 's'}"
    return f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g ({dtype}[batch,{channels},{shape}] x) => ({dtype}[batch,{channels},{",".join("a" * len(size))}] y)
        <{target}{region}> {{ y = Resize <{attributes}> ({inputs}) }}"""


def floats(numbers) -> str:
    return "{" + ",".join(str(float(number)) for number in numbers) + "}"


def feed(size, channels=2) -> dict[str, np.ndarray]:
    return {"x": RANDOM.normal(size=(2, channels, *size)).astype("f")}


COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
MODES = [
    *(f'"nearest", nearest_mode = "{m}"' for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    '"linear"',
    '"cubic"',
    '"cubic", cubic_coeff_a = -0.5, exclude_outside = 1',
]
TARGETS = [
    {"scales": (1, 1, 2, 3)},
    {"scales": (1, 1, 0.5, 0.6)},
    {"scales": (1, 1, 1.6, 1)},
    {"sizes": (2, 2, 7, 3)},
    {"sizes": (2, 2, 1, 8)},
]


def check_adjoint(source: str, given: dict[str, np.ndarray]) -> None:
    """<g, y(v)> is <dX, v> for every direction v, both by ONNX Runtime: Resize is linear."""
    model = onnx.parser.parse_model(source)
    slopes, seeds = run_gradients(model, given)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    size = given["x"][0].size
    for index in range(size):
        moved = np.zeros_like(given["x"])
        moved[0].reshape(-1)[index] = 1
        want = float(np.sum(session.run(None, {"x": moved})[0] * seeds["y"]))
        assert slopes["x"][0].reshape(-1)[index] == pytest.approx(want, rel=1e-4, abs=1e-5), index


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_mode_is_the_adjoint_of_the_forward_pass(target, mode, coordinates):
    attributes = f'mode = {mode}, coordinate_transformation_mode = "{coordinates}"'
    size = (5, 4)
    check_adjoint(text(size, attributes, **target), feed(size))


@pytest.mark.parametrize("mode", ['"linear"', '"cubic"', '"cubic", exclude_outside = 1'])
@pytest.mark.parametrize("target", [{"scales": (1, 1, 0.5, 0.4)}, {"sizes": (2, 2, 3, 7)}], ids=str)
def test_antialias(target, mode):
    check_adjoint(text((6, 5), f"mode = {mode}, antialias = 1", **target), feed((6, 5)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(2, 2, 6, 3), (2, 2, 1, 4)], ids=str)  # the last: nothing is cropped from axis 3
def test_crop_and_resize(mode, sizes):
    attributes = f'mode = {mode}, coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 0.0'
    roi = (0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2)
    check_adjoint(text((5, 4), attributes, sizes=sizes, roi=roi), feed((5, 4)))


@pytest.mark.parametrize(
    ("attributes", "target"),
    [
        ('mode = "linear", axes = [2, 3]', {"scales": (2, 1.5)}),
        ('mode = "linear", axes = [-1]', {"sizes": (3,)}),
        ('mode = "linear", axes = [2, 3], keep_aspect_ratio_policy = "not_larger"', {"sizes": (8, 10)}),
        ('mode = "linear", axes = [2, 3], keep_aspect_ratio_policy = "not_smaller"', {"sizes": (8, 10)}),
        ('mode = "nearest", axes = [1, 2, 3]', {"scales": (2, 2, 1)}),
    ],
)
def test_axes(attributes, target):
    check_adjoint(text((5, 4), attributes, **target), feed((5, 4)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("target", [(2,), (2, 1.5, 2)])
def test_one_and_three_dimensions(mode, target):
    size = (4, 3, 5)[: len(target)]
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "half_pixel"'
    check_adjoint(text(size, attributes, scales=(1, 1, *target)), feed(size))


@needs_torch
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (10, 8)])
@pytest.mark.parametrize(
    ("attributes", "options"),
    [
        (
            'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
            {"mode": "nearest"},
        ),
        ('mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"', {"mode": "bilinear"}),
        (
            'mode = "linear", coordinate_transformation_mode = "align_corners"',
            {"mode": "bilinear", "align_corners": True},
        ),
        ('mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel"', {"mode": "bicubic"}),
    ],
)
def test_as_torch_interpolates(attributes, options, size):
    def function(x):
        import torch.nn.functional as f

        return f.interpolate(x, size, **options)

    check_by_torch(text((5, 4), attributes, sizes=(2, 2, *size)), feed((5, 4)), function)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_against_differences(mode):
    check_by_differences(text((3, 3), f'mode = "{mode}"', scales=(1, 1, 2, 2), channels=1), feed((3, 3), 1))


@pytest.mark.parametrize(
    ("opset", "call", "scales"),
    [
        (10, 'Resize <mode = "nearest"> (x, s)', (1, 1, 2, 3)),
        (10, 'Resize <mode = "nearest"> (x, s)', (1, 1, 0.6, 1.5)),
        (10, 'Resize <mode = "linear"> (x, s)', (1, 1, 2, 0.5)),
        (9, 'Upsample <mode = "linear"> (x, s)', (1, 1, 2, 1.5)),
        (9, 'Upsample <mode = "nearest"> (x, s)', (1, 1, 2, 1)),
    ],
)
def test_before_opset_11(opset, call, scales):
    source = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[batch,2,5,4] x) => (float[batch,2,a,b] y)
        <float[4] s = {floats(scales)}> {{ y = {call} }}"""
    check_adjoint(source, feed((5, 4)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_element_types_fit(mode, dtype):
    backward, names = gradient_model(
        onnx.parser.parse_model(text((5, 4), f'mode = "{mode}"', scales=(1, 1, 2, 2), dtype=dtype))
    )
    assert names == ["x"]
    assert len({o.type.tensor_type.elem_type for o in backward.graph.output}) == 1


def test_nothing_resized_is_the_identity():
    slopes, seeds = run_gradients(
        onnx.parser.parse_model(text((2, 2), 'mode = "linear"', scales=(1, 1, 1, 1))), feed((2, 2))
    )
    np.testing.assert_allclose(slopes["x"], seeds["y"], rtol=1e-6)


def test_an_unknown_size_is_an_error():
    with pytest.raises(ModelError, match="axis 3 is resized"):
        gradient_model(onnx.parser.parse_model(text((5, "w"), 'mode = "linear"', scales=(1, 1, 2, 2))))


@pytest.mark.parametrize("names", [{"mode": "quintic"}, {"coordinates": "centre"}])
def test_unknown_names_are_errors(names):
    with pytest.raises(ValueError, match="unknown"):
        resize_matrix(AxisResize(size=3, out=6, scale=2.0, **names))
