"""Pixels, windows, convolutions and pools, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from tests.paddle.tensor.family import case, close

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(17)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


X = normal(2, 4, 6, 6)
LINE, CUBE = normal(2, 4, 9), normal(2, 3, 4, 5, 6)
THETA = np.array([[[0.8, 0.2, 0.1], [-0.3, 1.1, 0.05]], [[1.0, 0.0, 0.2], [0.1, 0.9, 0.0]]], np.float32)
GRID = normal(2, 3, 3, 2) / 2

CASES = {
    "pixel_shuffle": case(lambda x: F.pixel_shuffle(x, 2), lambda x: TF.pixel_shuffle(x, 2), X, fixed=True),
    "pixel_shuffle last": case(
        lambda x: F.pixel_shuffle(x, 2, "NHWC"),
        lambda x: TF.pixel_shuffle(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
        normal(2, 3, 5, 8),
        fixed=True,
    ),
    "pixel_unshuffle": case(lambda x: F.pixel_unshuffle(x, 3), lambda x: TF.pixel_unshuffle(x, 3), X, fixed=True),
    "channel_shuffle": case(lambda x: F.channel_shuffle(x, 2), lambda x: TF.channel_shuffle(x, 2), X, fixed=True),
    "temporal_shift": case(
        lambda x: F.temporal_shift(x, 2, 0.25),
        lambda x: torch.cat(
            [
                torch.cat([torch.zeros(1, 1, 6, 6), x[:1, :1]]),
                torch.cat([x[1:, 1:2], torch.zeros(1, 1, 6, 6)]),
                x[:, 2:],
            ],
            1,
        ),
        X,
        fixed=True,
    ),
    "zeropad2d": case(lambda x: F.zeropad2d(x, [1, 2, 0, 3]), lambda x: TF.pad(x, [1, 2, 0, 3]), X),
    "upsample": case(
        lambda x: F.upsample(x, scale_factor=2, mode="bilinear"),
        lambda x: TF.interpolate(x, scale_factor=2, mode="bilinear"),
        X,
        fixed=True,
    ),
    "unfold": case(lambda x: F.unfold(x, 3), lambda x: TF.unfold(x, 3), X, fixed=True),
    "unfold padded": case(
        lambda x: F.unfold(x, [2, 3], 2, [1, 2], [2, 1]),
        lambda x: TF.unfold(x, [2, 3], [2, 1], [1, 2], 2),
        X,
        fixed=True,
    ),
    "fold": case(lambda x: F.fold(x, [6, 6], 3), lambda x: TF.fold(x, [6, 6], 3), normal(2, 18, 16), fixed=True),
    "fold padded": case(
        lambda x: F.fold(x, [7, 8], [2, 3], 2, 1, [2, 1]),
        lambda x: TF.fold(x, [7, 8], [2, 3], [2, 1], 1, 2),
        normal(2, 12, 16),
        fixed=True,
    ),
    "affine_grid": case(
        lambda t: F.affine_grid(t, [2, 3, 4, 5]),
        lambda t: TF.affine_grid(t, [2, 3, 4, 5], align_corners=True),
        THETA,
        fixed=True,
    ),
    "affine_grid of edges": case(
        lambda t: F.affine_grid(t, [2, 3, 4, 5], False),
        lambda t: TF.affine_grid(t, [2, 3, 4, 5], align_corners=False),
        THETA,
        fixed=True,
    ),
    "affine_grid of volumes": case(
        lambda t: F.affine_grid(t, [2, 3, 4, 5, 6]),
        lambda t: TF.affine_grid(t, [2, 3, 4, 5, 6], align_corners=True),
        normal(2, 3, 4),
        fixed=True,
    ),
    "grid_sample": case(
        F.grid_sample, lambda x, g: TF.grid_sample(x, g, align_corners=True), X, GRID, fixed=True, differentiable=False
    ),
    "grid_sample nearest": case(
        lambda x, g: F.grid_sample(x, g, "nearest", "border", False),
        lambda x, g: TF.grid_sample(x, g, "nearest", "border", False),
        X,
        GRID,
        fixed=True,
        differentiable=False,
    ),
    "bilinear": case(
        F.bilinear,
        lambda x, y, w, b: TF.bilinear(x, y, w, b[0]),
        normal(4, 3),
        normal(4, 5),
        normal(2, 3, 5),
        normal(1, 2),
        fixed=True,
    ),
    "sequence_mask": case(
        lambda n: F.sequence_mask(n, 4), lambda n: (torch.arange(4) < n[:, None]).long(), np.array([2, 4, 0])
    ),
    "sequence_mask longest": case(
        lambda n: F.sequence_mask(n, dtype="float32"),
        lambda n: (torch.arange(3) < n[:, None]).float(),
        np.array([2, 3, 0]),
    ),
    "conv3d": case(F.conv3d, TF.conv3d, CUBE, normal(2, 3, 2, 3, 2), normal(2), fixed=True, tolerance=1e-4),
    "conv1d_transpose": case(
        lambda x, w: F.conv1d_transpose(x, w, None, 2, 1, 1),
        lambda x, w: TF.conv_transpose1d(x, w, None, 2, 1, 1),
        LINE,
        normal(4, 2, 3),
        fixed=True,
        tolerance=1e-4,
    ),
    "conv1d_transpose output_size": case(
        lambda x, w: F.conv1d_transpose(x, w, None, 2, output_size=20),
        lambda x, w: TF.conv_transpose1d(x, w, None, 2, 0, 1),
        LINE,
        normal(4, 2, 3),
        fixed=True,
        tolerance=1e-4,
    ),
    "conv3d_transpose": case(
        lambda x, w, b: F.conv3d_transpose(x, w, b, 2),
        lambda x, w, b: TF.conv_transpose3d(x, w, b, 2),
        CUBE,
        normal(3, 2, 2, 2, 2),
        normal(2),
        fixed=True,
        tolerance=1e-4,
    ),
    "max_pool3d": case(lambda x: F.max_pool3d(x, 2), lambda x: TF.max_pool3d(x, 2), CUBE, fixed=True),
    "avg_pool3d": case(lambda x: F.avg_pool3d(x, 2, 1), lambda x: TF.avg_pool3d(x, 2, 1), CUBE, fixed=True),
    "max_pool2d mask": case(
        lambda x: F.max_pool2d(x, 3, 2, 1, return_mask=True),
        lambda x: TF.max_pool2d(x, 3, 2, 1, return_indices=True),
        X,
        fixed=True,
    ),
    "max_pool1d mask": case(
        lambda x: F.max_pool1d(x, 3, return_mask=True),
        lambda x: TF.max_pool1d(x, 3, return_indices=True),
        LINE,
        fixed=True,
    ),
    "adaptive_avg_pool1d": case(
        lambda x: F.adaptive_avg_pool1d(x, 4), lambda x: TF.adaptive_avg_pool1d(x, 4), LINE, fixed=True
    ),
    "adaptive_avg_pool1d whole": case(
        lambda x: F.adaptive_avg_pool1d(x, 1), lambda x: TF.adaptive_avg_pool1d(x, 1), LINE
    ),
    "adaptive_avg_pool3d": case(
        lambda x: F.adaptive_avg_pool3d(x, [2, 2, None]),
        lambda x: TF.adaptive_avg_pool3d(x, [2, 2, None]),
        CUBE,
        fixed=True,
    ),
    "adaptive_max_pool1d": case(
        lambda x: F.adaptive_max_pool1d(x, 4), lambda x: TF.adaptive_max_pool1d(x, 4), LINE, fixed=True
    ),
    "adaptive_max_pool2d": case(
        lambda x: F.adaptive_max_pool2d(x, 3), lambda x: TF.adaptive_max_pool2d(x, 3), X, fixed=True
    ),
    "adaptive_max_pool2d uneven": case(
        lambda x: F.adaptive_max_pool2d(x, [4, 5]), lambda x: TF.adaptive_max_pool2d(x, [4, 5]), X, fixed=True
    ),
    "adaptive_max_pool3d": case(
        lambda x: F.adaptive_max_pool3d(x, 2), lambda x: TF.adaptive_max_pool3d(x, 2), CUBE, fixed=True
    ),
    "lp_pool1d": case(
        lambda x: F.lp_pool1d(x, 2, 3), lambda x: TF.lp_pool1d(x, 2, 3), LINE, fixed=True, tolerance=1e-4
    ),
    "lp_pool2d": case(
        lambda x: F.lp_pool2d(x, 2.0, 2, 1), lambda x: TF.lp_pool2d(x, 2.0, 2, 1), X, fixed=True, tolerance=1e-4
    ),
    "max_unpool2d": case(
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_mask=True), 2),
        lambda x: TF.max_unpool2d(*TF.max_pool2d(x, 2, return_indices=True), 2),
        X,
        fixed=True,
    ),
    "max_unpool1d": case(
        lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_mask=True), 2, output_size=[9]),
        lambda x: TF.max_unpool1d(*TF.max_pool1d(x, 2, return_indices=True), 2, output_size=[9]),
        LINE,
        fixed=True,
    ),
}


@pytest.mark.parametrize("free", [False, True], ids=["known sizes", "free sizes"])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(computed, name, free):
    if free and CASES[name].fixed:
        return
    close(computed(free)[name], CASES[name])
