"""Gradients of GridSample, against torch's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import check_by_torch, gradient_model, needs_torch
from tests.autodiff.graph_text import assert_low_is_well_typed, graph

RANDOM = np.random.default_rng(3)


def feeds_of(image: tuple[int, ...], points: tuple[int, ...]) -> dict[str, np.ndarray]:
    rank = len(image) - 2
    grid = RANDOM.uniform(-1.4, 1.4, (image[0], *points, rank)).astype("f")
    return {"x": RANDOM.normal(size=image).astype("f"), "p": grid}


@needs_torch
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images(mode, aligned, padding):
    from torch.nn.functional import grid_sample

    body = f'y = GridSample<mode = "{mode}", align_corners = {aligned}, padding_mode = "{padding}">(x, p)'
    text = graph("float[2,3,5,4] x, float[2,3,6,2] p", body, outputs="float[2,3,3,6] y")
    check_by_torch(
        text,
        feeds_of((2, 3, 5, 4), (3, 6)),
        lambda x, p: grid_sample(x, p, mode.replace("linear", "bilinear"), padding, bool(aligned)),
    )


@needs_torch
def test_volumes_of_any_number():
    from torch.nn.functional import grid_sample

    text = graph("float[N,2,3,4,5] x, float[N,2,2,3,3] p", "y = GridSample(x, p)", outputs="float[N,2,2,2,3] y")
    feeds = feeds_of((2, 2, 3, 4, 5), (2, 2, 3))
    check_by_torch(text, feeds, lambda x, p: grid_sample(x, p, align_corners=False))


def test_element_types():
    text = graph("float[2,3,5,4] x, float[2,3,6,2] p", "y = GridSample(x, p)", outputs="float[2,3,3,6] y", opset=22)
    assert_low_is_well_typed(text, ["float16"])


def test_cubic_is_refused():
    text = graph("float[2,3,5,4] x, float[2,3,6,2] p", 'y = GridSample<mode = "cubic">(x, p)')
    with pytest.raises(ModelError, match="mode 'cubic' is not supported"):
        gradient_model(onnx.parser.parse_model(text))
