"""Functions of layers against torch's, element by element."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import tensor
from amp_transpiler.paddle.framework.programs import data, default_main_program, program_guard
from amp_transpiler.program.program import Program

torch = pytest.importorskip("torch")
TF = torch.nn.functional

RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def check(run, feed_in, ours, theirs, *arrays, tolerance=2e-5):
    names = [f"x{i}" for i in range(len(arrays))]
    result = ours(*(feed_in(name, array) for name, array in zip(names, arrays, strict=True)))
    expected = theirs(*(torch.from_numpy(array) for array in arrays)).numpy()
    (got,) = run([result], **dict(zip(names, arrays, strict=True)))
    assert got.dtype == expected.dtype
    assert len(result.shape) == got.ndim
    assert all(size in (-1, real) for size, real in zip(result.shape, got.shape, strict=True))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


# ---- activations ----

ACTIVATIONS = {
    "relu": (F.relu, TF.relu),
    "relu6": (F.relu6, TF.relu6),
    "leaky_relu": (F.leaky_relu, TF.leaky_relu),
    "leaky_relu slope": (lambda x: F.leaky_relu(x, 0.3), lambda x: TF.leaky_relu(x, 0.3)),
    "elu": (F.elu, TF.elu),
    "elu alpha": (lambda x: F.elu(x, 0.5), lambda x: TF.elu(x, 0.5)),
    "selu": (F.selu, TF.selu),
    "gelu": (F.gelu, TF.gelu),
    "gelu approximate": (lambda x: F.gelu(x, True), lambda x: TF.gelu(x, approximate="tanh")),
    "sigmoid": (F.sigmoid, torch.sigmoid),
    "tanh": (F.tanh, torch.tanh),
    "softmax": (F.softmax, lambda x: TF.softmax(x, -1)),
    "softmax axis": (lambda x: F.softmax(x, 1), lambda x: TF.softmax(x, 1)),
    "log_softmax": (F.log_softmax, lambda x: TF.log_softmax(x, -1)),
    "log_softmax axis": (lambda x: F.log_softmax(x, -2), lambda x: TF.log_softmax(x, -2)),
    "softplus": (F.softplus, TF.softplus),
    "softplus beta": (lambda x: F.softplus(x, 2.0), lambda x: TF.softplus(x, 2.0)),
    "softplus threshold": (lambda x: F.softplus(x, 1, 0.5), lambda x: TF.softplus(x, 1, 0.5)),
    "softsign": (F.softsign, TF.softsign),
    "hardswish": (F.hardswish, TF.hardswish),
    "hardsigmoid": (F.hardsigmoid, TF.hardsigmoid),
    "silu": (F.silu, TF.silu),
    "swish": (F.swish, TF.silu),
    "mish": (F.mish, TF.mish),
    "normalize": (F.normalize, TF.normalize),
    "normalize 1": (lambda x: F.normalize(x, 1, -1), lambda x: TF.normalize(x, 1, -1)),
    "normalize 3": (lambda x: F.normalize(x, 3, 2), lambda x: TF.normalize(x, 3, 2)),
}


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activation(run, feed_in, ours, theirs):
    check(run, feed_in, ours, theirs, normal(2, 3, 5) * 4)


@pytest.mark.parametrize("count", [1, 3])
def test_prelu(run, feed_in, count):
    x = normal(2, 3, 5)
    slope = np.linspace(0.1, 0.5, count).astype(np.float32)
    ours = feed_in("x", x)
    weight = data("w", [count])
    (got,) = run([F.prelu(ours, weight)], x=x, w=slope)
    np.testing.assert_allclose(got, TF.prelu(torch.from_numpy(x), torch.from_numpy(slope)).numpy(), rtol=1e-6)


# ---- convolutions and pools ----

CONVOLUTIONS = {
    "plain": ((2, 4, 9, 8), (6, 4, 3, 3), {}),
    "stride and pad": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": (1, 2)}),
    "dilation": ((1, 4, 9, 8), (6, 4, 3, 2), {"dilation": (2, 3)}),
    "groups": ((1, 4, 9, 8), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "valid": ((1, 4, 9, 8), (6, 4, 3, 3), {"padding": "valid"}),
    "same": ((1, 4, 9, 8), (6, 4, 3, 3), {"padding": "same"}),
}


@pytest.mark.parametrize(("x", "w", "options"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_conv2d(run, feed_in, x, w, options):
    weight = normal(*w)
    weights = data("w", w)
    images = normal(*x)
    (got,) = run([F.conv2d(feed_in("x", images), weights, **options)], x=images, w=weight)
    expected = TF.conv2d(torch.from_numpy(images), torch.from_numpy(weight), **options)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "padding", [[1, 2, 0, 3], [[1, 2], [0, 3]], [[0, 0], [0, 0], [1, 2], [0, 3]]], ids=["flat", "pairs", "all axes"]
)
def test_uneven_padding(run, feed_in, padding):
    images, weight = normal(1, 2, 5, 5), normal(3, 2, 3, 3)
    result = F.conv2d(feed_in("x", images), data("w", weight.shape), padding=padding)
    (got,) = run([result], x=images, w=weight)
    padded = TF.pad(torch.from_numpy(images), (0, 3, 1, 2))
    np.testing.assert_allclose(got, TF.conv2d(padded, torch.from_numpy(weight)).numpy(), rtol=1e-4, atol=1e-5)


def test_conv2d_with_channels_last_and_bias(run, feed_in):
    images, weight, bias = normal(2, 5, 6, 3), normal(4, 3, 3, 3), normal(4)
    result = F.conv2d(feed_in("x", images), data("w", weight.shape), data("b", [4]), padding=1, data_format="NHWC")
    (got,) = run([result], x=images, w=weight, b=bias)
    tensors = (torch.from_numpy(a) for a in (images.transpose(0, 3, 1, 2).copy(), weight, bias))
    expected = TF.conv2d(*tensors, padding=1).numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_conv1d(run, feed_in):
    x, weight = normal(2, 4, 11), normal(6, 2, 3)
    result = F.conv1d(feed_in("x", x), data("w", weight.shape), stride=2, padding=1, groups=2)
    (got,) = run([result], x=x, w=weight)
    expected = TF.conv1d(torch.from_numpy(x), torch.from_numpy(weight), stride=2, padding=1, groups=2)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"stride": 2, "padding": 1}, {"stride": 2, "padding": 1}),
        ({"stride": 2, "output_padding": 1}, {"stride": 2, "output_padding": 1}),
        ({"stride": 2, "output_size": [12, 10]}, {"stride": 2, "output_padding": 1}),
        ({"groups": 2, "dilation": 2}, {"groups": 2, "dilation": 2}),
    ],
    ids=["plain", "stride", "output_padding", "output_size", "groups"],
)
def test_conv2d_transpose(run, feed_in, ours, theirs):
    images, weight = normal(2, 4, 5, 4), normal(4, 3, 3, 3)
    result = F.conv2d_transpose(feed_in("x", images), data("w", weight.shape), **ours)
    (got,) = run([result], x=images, w=weight)
    expected = TF.conv_transpose2d(torch.from_numpy(images), torch.from_numpy(weight), **theirs)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


POOLS = {
    "max": (lambda x: F.max_pool2d(x, 2), lambda x: TF.max_pool2d(x, 2)),
    "max stride": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: TF.max_pool2d(x, 3, 2, 1)),
    "max ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), lambda x: TF.max_pool2d(x, 2, ceil_mode=True)),
    "avg": (lambda x: F.avg_pool2d(x, [2, 3]), lambda x: TF.avg_pool2d(x, (2, 3))),
    "avg exclusive": (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: TF.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    "avg inclusive": (lambda x: F.avg_pool2d(x, 3, 2, 1, exclusive=False), lambda x: TF.avg_pool2d(x, 3, 2, 1)),
    "avg divisor": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        lambda x: TF.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    ),
    "avg ceil": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), lambda x: TF.avg_pool2d(x, 2, ceil_mode=True)),
    "adaptive 1": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: TF.adaptive_avg_pool2d(x, 1)),
    "adaptive even": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), lambda x: TF.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive uneven": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), lambda x: TF.adaptive_avg_pool2d(x, (4, 3))),
    "adaptive kept": (lambda x: F.adaptive_avg_pool2d(x, (None, 3)), lambda x: TF.adaptive_avg_pool2d(x, (None, 3))),
}


@pytest.mark.parametrize(("ours", "theirs"), POOLS.values(), ids=POOLS)
def test_pool2d(run, feed_in, ours, theirs):
    check(run, feed_in, ours, theirs, normal(2, 3, 9, 8))


POOLS_1D = {
    "max": (lambda x: F.max_pool1d(x, 3, 2), lambda x: TF.max_pool1d(x, 3, 2)),
    "avg": (lambda x: F.avg_pool1d(x, 3, 2, 1), lambda x: TF.avg_pool1d(x, 3, 2, 1, count_include_pad=False)),
}


@pytest.mark.parametrize(("ours", "theirs"), POOLS_1D.values(), ids=POOLS_1D)
def test_pool1d(run, feed_in, ours, theirs):
    check(run, feed_in, ours, theirs, normal(2, 3, 9))


def test_pool_with_channels_last(run, feed_in):
    x = normal(2, 6, 4, 3)
    (got,) = run([F.max_pool2d(feed_in("x", x), 2, data_format="NHWC")], x=x)
    np.testing.assert_array_equal(got, x.reshape(2, 3, 2, 2, 2, 3).max((2, 4)))


# ---- normalisation ----


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_batch_norm_by_given_statistics(run, feed_in, data_format):
    x, mean, var, scale, bias = normal(4, 3, 5, 2), normal(3), np.abs(normal(3)), normal(3), normal(3)
    batch = x if data_format == "NCHW" else x.transpose(0, 2, 3, 1).copy()
    vectors = [data(name, [3]) for name in ("m", "v", "s", "b")]
    result = F.batch_norm(feed_in("x", batch), *vectors, data_format=data_format)
    (got,) = run([result], x=batch, m=mean, v=var, s=scale, b=bias)
    expected = TF.batch_norm(*(torch.from_numpy(a) for a in (x, mean, var, scale, bias))).numpy()
    expected = expected if data_format == "NCHW" else expected.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_wants_statistics_that_persist():
    x, mean, var = data("x", [None, 3]), data("m", [3]), data("v", [3])
    with pytest.raises(InputError, match="must be persistable"):
        F.batch_norm(x, mean, var, training=True)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("kind", ["layer", "group", "instance"])
def test_norm(run, feed_in, kind, affine):
    x = normal(2, 6, 4, 3)
    shape = (4, 3) if kind == "layer" else (6,)
    scale, bias = normal(*shape), normal(*shape)
    feeds = {"s": scale, "b": bias} if affine else {}
    ours = [data("s", shape), data("b", shape)] if affine else [None, None]
    theirs = [torch.from_numpy(scale), torch.from_numpy(bias)] if affine else [None, None]
    image, tensor = feed_in("x", x), torch.from_numpy(x)
    result, expected = {
        "layer": lambda: (F.layer_norm(image, [4, 3], *ours), TF.layer_norm(tensor, [4, 3], *theirs)),
        "group": lambda: (
            F.group_norm(image, 3, weight=ours[0], bias=ours[1]),
            TF.group_norm(tensor, 3, *theirs),
        ),
        "instance": lambda: (
            F.instance_norm(image, weight=ours[0], bias=ours[1]),
            TF.instance_norm(tensor, weight=theirs[0], bias=theirs[1]),
        ),
    }[kind]()
    (got,) = run([result], x=x, **feeds)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


# ---- look-ups, shapes, attention ----


def test_linear(run, feed_in):
    x, weight, bias = normal(2, 3, 4), normal(4, 5), normal(5)
    (got,) = run([F.linear(feed_in("x", x), data("w", [4, 5]), data("b", [5]))], x=x, w=weight, b=bias)
    np.testing.assert_allclose(got, x @ weight + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding(run, feed_in, padding):
    table, rows = normal(5, 3), np.array([[0, 2], [4, 2], [1, 0]])
    (got,) = run([F.embedding(feed_in("x", rows), data("w", [5, 3]), padding_idx=padding)], x=rows, w=table)
    expected = table[rows]
    if padding is not None:
        expected[rows == padding % 5] = 0
    np.testing.assert_array_equal(got, expected)


def test_one_hot(run, feed_in):
    x = np.array([[0, 2], [3, 1]])
    (got,) = run([F.one_hot(feed_in("x", x), 4)], x=x)
    np.testing.assert_array_equal(got, np.eye(4, dtype=np.float32)[x])


PADS = {
    "constant": ((1, 2, 3, 0), "constant", 1.5),
    "reflect": ((1, 2, 3, 0), "reflect", 0.0),
    "replicate": ((1, 2, 3, 0), "replicate", 0.0),
    "circular": ((1, 2, 3, 0), "circular", 0.0),
}


@pytest.mark.parametrize(("amounts", "mode", "value"), PADS.values(), ids=PADS)
def test_pad(run, feed_in, amounts, mode, value):
    check(
        run,
        feed_in,
        lambda x: F.pad(x, amounts, mode, value),
        lambda x: TF.pad(x, amounts, mode, value if mode == "constant" else None),
        normal(1, 2, 5, 4),
    )


def test_pad_of_every_axis_counts_from_the_first(run, feed_in):
    x = normal(2, 3, 4, 5)
    (got,) = run([F.pad(feed_in("x", x), [0, 1, 2, 0, 0, 0, 1, 1])], x=x)
    np.testing.assert_array_equal(got, np.pad(x, ((0, 1), (2, 0), (0, 0), (1, 1))))


RESIZES = {
    "nearest": ({"size": [7, 9]}, {"size": (7, 9)}),
    "nearest factor": ({"scale_factor": 2}, {"scale_factor": 2}),
    "bilinear": ({"size": [7, 9], "mode": "bilinear"}, {"size": (7, 9), "mode": "bilinear"}),
    "bilinear factor": ({"scale_factor": [2, 1.5], "mode": "bilinear"}, {"scale_factor": (2, 1.5), "mode": "bilinear"}),
    "bilinear corners": (
        {"size": [7, 9], "mode": "bilinear", "align_corners": True},
        {"size": (7, 9), "mode": "bilinear", "align_corners": True},
    ),
    "bicubic": ({"size": [7, 9], "mode": "bicubic"}, {"size": (7, 9), "mode": "bicubic"}),
}


@pytest.mark.parametrize(("ours", "theirs"), RESIZES.values(), ids=RESIZES)
def test_interpolate(run, feed_in, ours, theirs):
    check(
        run,
        feed_in,
        lambda x: F.interpolate(x, **ours),
        lambda x: TF.interpolate(x, **theirs),
        normal(1, 2, 4, 6),
        tolerance=1e-4,
    )


# What is computed gives the sizes of [7, 9] or the factors (2, 2) from an image of that size, or of [2].
COMPUTED = {
    "a vector of sizes": (lambda y, _: {"size": tensor.shape(y)[2:]}, {"size": (7, 9)}),
    "sizes among numbers": (lambda y, _: {"size": [tensor.shape(y)[2], 9]}, {"size": (7, 9)}),
    "one size": (lambda y, _: {"size": tensor.shape(y)[2]}, {"size": (7, 7)}),
    "one factor": (lambda _, f: {"scale_factor": f[:1]}, {"scale_factor": 2}),
    "factors": (lambda _, f: {"scale_factor": f}, {"scale_factor": (2, 1.5)}),
}


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("ours", "theirs"), COMPUTED.values(), ids=COMPUTED)
def test_interpolate_to_what_is_computed(run, mode, ours, theirs):
    x, y, factors = normal(1, 2, 4, 6), normal(1, 2, 7, 9), np.float32([2, 1.5])
    images, other, by = data("x", [None, 2, None, None]), data("y", [None, 2, None, None]), data("f", [2])
    result = F.interpolate(images, mode=mode, **ours(other, by))
    assert result.shape == (-1, 2, -1, -1)
    (got,) = run([result], x=x, y=y, f=factors)
    np.testing.assert_allclose(
        got, TF.interpolate(torch.from_numpy(x), mode=mode, **theirs).numpy(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("case", ["plain", "causal", "added mask", "bool mask"])
def test_attention(run, feed_in, case):
    q, k, v = normal(2, 5, 3, 4), normal(2, 5, 3, 4), normal(2, 5, 3, 4)
    mask = {
        "added mask": normal(2, 1, 5, 5),
        "bool mask": np.eye(5, dtype=bool) | (RANDOM.random((2, 1, 5, 5)) < 0.5),
    }.get(case)
    feeds = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    inputs = {name: feed_in(name, array) for name, array in feeds.items()}
    result = F.scaled_dot_product_attention(
        inputs["q"], inputs["k"], inputs["v"], inputs.get("mask"), is_causal=case == "causal"
    )
    (got,) = run([result], **feeds)
    tensors = (torch.from_numpy(a).transpose(1, 2) for a in (q, k, v))
    theirs = None if mask is None else torch.from_numpy(mask)
    expected = TF.scaled_dot_product_attention(*tensors, attn_mask=theirs, is_causal=case == "causal")
    np.testing.assert_allclose(got, expected.transpose(1, 2).numpy(), rtol=1e-4, atol=1e-5)


def test_causal_attention_over_a_free_length(run):
    q = normal(2, 5, 1, 4)
    x = data("q", [None, None, 1, 4])
    (got,) = run([F.scaled_dot_product_attention(x, x, x, is_causal=True)], q=q)
    tensor = torch.from_numpy(q).transpose(1, 2)
    expected = TF.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True).transpose(1, 2)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


# ---- errors ----

REFUSED = {
    "channels": (lambda x: F.conv2d(x, data("w", [4, 2, 3, 3])), InputError, "has 3 channels"),
    "rank": (lambda x: F.conv1d(x, data("w", [4, 3, 3])), InputError, "3 dimensions"),
    "padding": (lambda x: F.max_pool2d(x, 2, padding=[1, 2, 3]), OptionError, "padding must be"),
    "negative padding": (lambda x: F.max_pool2d(x, 2, padding=-1), OptionError, "none negative"),
    "format": (lambda x: F.max_pool2d(x, 2, data_format="CHWN"), OptionError, "data_format"),
    "axis": (lambda x: F.softmax(x, 4), InputError, "axis 4 is outside"),
    "groups": (lambda x: F.group_norm(x, 2), InputError, "3 channels"),
    "size": (F.interpolate, OptionError, "one of size and scale_factor"),
    "a size that is free": (lambda x: F.interpolate(x, [-1, 4]), OptionError, r"not positive.*paddle\.shape\(y\), not"),
    "factors of all axes": (lambda x: F.interpolate(x, scale_factor=[1, 1, 2, 2]), OptionError, "positive factor or 2"),
    "sizes of all axes": (lambda x: F.interpolate(x, tensor.shape(x)), OptionError, "expected a number or 2 of them"),
    "mode": (lambda x: F.pad(x, [1, 1, 1, 1], "mirror"), OptionError, "'mirror'"),
    "probability": (lambda x: F.dropout(x, 1.5), OptionError, "probability"),
    "no variable": (lambda x: F.linear(x, np.eye(3)), InputError, "must be a variable"),
    "output size": (
        lambda x: F.conv2d_transpose(x, data("w", [3, 2, 3, 3]), stride=2, output_size=[30, 30]),
        InputError,
        "cannot result",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    x = data("x", [None, 3, 8, 8])
    with pytest.raises(error, match=message):
        make(x)


def test_variables_of_two_programs_do_not_mix():
    x = data("x", [None, 3])
    with program_guard(Program(), Program()):
        y = data("y", [None, 3])
    before = default_main_program().model.graph.num_nodes()
    with pytest.raises(InputError, match="another program"):
        F.mse_loss(x, y)
    assert default_main_program().model.graph.num_nodes() == before
