"""Pixels, windows, convolutions and pools, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import nn, static
from tests.paddle.tensor.family import case, close, compute, family_test

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
        F.grid_sample, lambda x, g: TF.grid_sample(x, g, align_corners=True), X, GRID, fixed=True, tolerance=1e-4
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


test_value_and_gradient = family_test(CASES)


def spread(u, size, count, window):
    """The intervals of fractional pooling, written as a loop."""
    step = (size - window) / (count - (window > 0))
    if not window:
        base = size // count
        u *= min((base + 2) / step - 1, (size + 1 - base) / step - (count - 1))
    edges = [int((i + u) * step) - int(u * step) for i in range(count + 1)]
    return [(edges[i], min(edges[i] + window if window else edges[i + 1], size)) for i in range(count)]


def fractional(x, u, counts, windows):
    """Values and places, window by window."""
    sizes = x.shape[2:]
    parts = [spread(u, *triple) for triple in zip(sizes, counts, windows, strict=True)]
    flat = np.arange(np.prod(sizes)).reshape(sizes)
    values, places = np.empty((*x.shape[:2], *counts), x.dtype), np.empty((*x.shape[:2], *counts), np.int64)
    for place in np.ndindex(*values.shape):
        window = tuple(slice(*parts[axis][i]) for axis, i in enumerate(place[2:]))
        cut = x[place[:2]][window]
        values[place] = cut.max()
        places[place] = flat[window].reshape(-1)[cut.argmax()]
    return values, places


@pytest.mark.parametrize("u", [0.3, 0.999, 0.01])
@pytest.mark.parametrize(
    ("x", "counts", "kernel"), [(X, [4, 3], None), (X, [3, 4], [2, 3]), (CUBE, [3, 2, 4], None), (CUBE, [2, 2, 3], 2)]
)
def test_fractional_pooling(x, counts, kernel, u):
    function = F.fractional_max_pool2d if x.ndim == 4 else F.fractional_max_pool3d
    windows = [0] * len(counts) if kernel is None else np.broadcast_to(kernel, len(counts)).tolist()
    values, places = fractional(x, u, counts, windows)
    row = case(
        lambda x: function(x, counts, kernel, u, True),
        lambda x: (x.flatten(2).gather(2, torch.tensor(places).flatten(2)).view(values.shape), torch.tensor(places)),
        x,
    )
    close(compute({"it": row}, free=False)["it"], row)


@pytest.mark.parametrize(
    ("layer", "function", "x"),
    [
        (nn.FractionalMaxPool2D, F.fractional_max_pool2d, X),
        (nn.FractionalMaxPool3D, F.fractional_max_pool3d, CUBE),
    ],
)
def test_fractional_pooling_as_a_layer(layer, function, x):
    with static.program_guard(static.Program(), static.Program()):
        images = static.data("x", x.shape)
        pooled = [layer(2, random_u=0.3)(images), function(images, 2, random_u=0.3)]
        values = static.Executor("cpu").run(images.program, {"x": x}, pooled)
    np.testing.assert_array_equal(*values)


def test_fractional_pooling_of_the_documents_example():
    line = np.array([2, 4, 3, 1, 5, 2, 3], np.float32)
    row = case(
        lambda x: F.fractional_max_pool2d(x, [5, 7], random_u=0.3)[:, :, :, :1],
        lambda x: torch.tensor([2, 4, 1, 5, 3.0]).view(1, 1, 5, 1),
        np.repeat(line[None, None, :, None], 7, 3),
        differentiable=False,
    )
    close(compute({"it": row}, free=False)["it"], row)


def test_fractional_pooling_draws_anew_in_each_run():
    main, scope = static.Program(), static.Scope()
    with static.program_guard(main, static.Program()) as _, static.scope_guard(scope):
        pooled = F.fractional_max_pool2d(static.data("x", [1, 1, 29, 29]), 9)
        executor = static.Executor("cpu")
        executor.run(static.default_startup_program())
        image = np.arange(841, dtype=np.float32).reshape(1, 1, 29, 29)
        runs = [executor.run(main, {"x": image}, [pooled])[0] for _ in range(6)]
    assert len({run.tobytes() for run in runs}) > 1
    for run in runs:
        assert (np.diff(run[0, 0, 0]) >= 3).all()
        assert run[0, 0, -1, -1] == 840


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: F.fractional_max_pool2d(x, 3, random_u=1.5), r"random_u must be in \(0, 1\)"),
        (lambda x: F.fractional_max_pool2d(x, 9), "too small for"),
        (lambda x: F.fractional_max_pool2d(x, 0), "sizes must be positive"),
        (lambda x: F.fractional_max_pool3d(x, 2), "must have 5 dimensions"),
    ],
)
def test_fractional_pooling_refuses(call, said):
    with static.program_guard(static.Program(), static.Program()), pytest.raises(InputError, match=said):
        call(static.data("x", [2, 3, 6, 6]))
