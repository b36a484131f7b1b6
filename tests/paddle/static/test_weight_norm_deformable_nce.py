"""Weights as length and direction, deformable convolutions, noise contrastive estimation, sums of clicks."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import optimizer, static
from amp_transpiler.paddle.nn import initializer

RANDOM = np.random.default_rng(29)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


pytestmark = pytest.mark.usefixtures("fresh_programs")


def run(feed, *fetch):
    """Run the startup program, and the main one once."""
    executor = static.Executor("cpu")
    executor.run(static.default_startup_program())
    return executor.run(feed=feed, fetch_list=list(fetch))


# ---- weights as length and direction ----


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_a_weight_is_trained_as_length_and_direction(dim):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    start, data = normal(4, 3), normal(5, 4)
    attr = static.WeightNormParamAttr(dim=dim, name="w", initializer=initializer.Assign(start), learning_rate=0.5)
    loss = paddle.mean(paddle.tanh(static.nn.fc(static.data("x", [None, 4]), 3, weight_attr=attr)))
    optimizer.SGD(0.2).minimize(loss)
    run({"x": data}, loss)
    v = torch.tensor(start, requires_grad=True)
    others = (0, 1) if dim is None else (1 - dim,)
    g = v.detach().norm(dim=others, keepdim=True).requires_grad_()
    torch.tanh(torch.tensor(data) @ (g * v / v.norm(dim=others, keepdim=True))).mean().backward()
    scope = static.global_scope()
    np.testing.assert_allclose(scope["w_v"], (v - 0.1 * v.grad).detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scope["w_g"], (g - 0.1 * g.grad).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_filter_of_unit_length_starts_as_the_weight_would():
    x = static.data("x", [None, 3, 5, 5])
    filtered = static.nn.conv2d(x, 4, 3, param_attr=static.WeightNormParamAttr(dim=0), bias_attr=False)
    image = normal(2, 3, 5, 5)
    (got,) = run({"x": image}, filtered)
    scope = static.global_scope()
    assert sorted(scope) == ["conv2d_0.w_0_g", "conv2d_0.w_0_v"]
    assert scope["conv2d_0.w_0_g"].shape == (4, 1, 1, 1)
    plain = np.einsum("nchw,fchw->nf", image[:, :, 1:4, 1:4], scope["conv2d_0.w_0_v"])
    np.testing.assert_allclose(got[:, :, 1, 1], plain, rtol=1e-4, atol=1e-5)


# ---- deformable convolutions ----


def deformed(torch, x, offset, mask, weight, bias, *, stride, padding, dilation, groups, parts):
    """The definition, tap by tap and pixel by pixel."""
    batch, channels, height, width = x.shape
    filters, _, rows, columns = weight.shape
    down, right = offset.shape[2:]
    pieces = []
    for n in range(batch):
        for f in range(filters):
            for i, j in np.ndindex(down, right):
                total = bias[f]
                for c in range(channels // groups):
                    channel = f // (filters // groups) * (channels // groups) + c
                    part = channel // (channels // parts)
                    for tap, (a, b) in enumerate(np.ndindex(rows, columns)):
                        at = part * rows * columns + tap
                        y = offset[n, 2 * at, i, j] + (i * stride - padding + a * dilation)
                        z = offset[n, 2 * at + 1, i, j] + (j * stride - padding + b * dilation)
                        top, left = int(torch.floor(y)), int(torch.floor(z))
                        for p, q in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                            if 0 <= p < height and 0 <= q < width:
                                share = (1 - (y - p).abs()) * (1 - (z - q).abs())
                                total = total + share * x[n, channel, p, q] * mask[n, at, i, j] * weight[f, c, a, b]
                pieces.append(total)
    return torch.stack(pieces).reshape(batch, filters, down, right)


@pytest.mark.slow
@pytest.mark.parametrize("with_mask", [True, False])
def test_deformable_convolutions_follow_the_definition(with_mask):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    arrays = {"x": normal(1, 4, 5, 4), "offset": normal(1, 36, 3, 2), "mask": normal(1, 18, 3, 2)}
    weight, bias = normal(4, 2, 3, 3), normal(4)
    inputs = {name: static.data(name, [None, *array.shape[1:]]) for name, array in arrays.items()}
    for tensor in inputs.values():
        tensor.stop_gradient = False
    convolved = static.nn.deform_conv2d(
        inputs["x"], inputs["offset"], inputs["mask"] if with_mask else None, 4, 3, 2, 1, 1, 2, 2,
        weight_attr=paddle.ParamAttr("w", initializer.Assign(weight)),
        bias_attr=paddle.ParamAttr("b", initializer.Assign(bias)),
    )  # fmt: skip
    wanted = [inputs[name] for name in arrays if with_mask or name != "mask"]
    program = static.default_main_program()
    grads = static.gradients(paddle.mean(convolved * convolved), [*wanted, program.var("w"), program.var("b")])
    got, *slopes = run(arrays, convolved, *grads)
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    filters, offsets = torch.tensor(weight, requires_grad=True), torch.tensor(bias, requires_grad=True)
    masks = theirs["mask"] if with_mask else torch.ones(1, 18, 3, 2)
    settings = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2, "parts": 2}
    want = deformed(torch, theirs["x"], theirs["offset"], masks, filters, offsets, **settings)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-4, atol=1e-5)
    (want * want).mean().backward()
    for slope, leaf in zip(slopes, [*(theirs[tensor.name] for tensor in wanted), filters, offsets], strict=True):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_deformable_convolutions_that_do_not_fit_are_refused():
    x, offset = static.data("x", [None, 4, 5, 5]), static.data("o", [None, 18, 3, 3])
    assert static.nn.deform_conv2d(x, offset, None, 2, 3).shape == (-1, 2, 3, 3)
    with pytest.raises(InputError, match=r"expected \[batch, 18, 5, 5\], got"):
        static.nn.deform_conv2d(x, offset, None, 2, 3, padding=1)
    with pytest.raises(InputError, match="4 channels and 2 filters cannot be split"):
        static.nn.deform_conv2d(x, offset, None, 2, 3, groups=3)
    with pytest.raises(OptionError, match="the layer needs its weight"):
        static.nn.deform_conv2d(x, offset, None, 2, 3, weight_attr=False)


# ---- noise contrastive estimation ----


@pytest.mark.parametrize("weighed", [False, True])
def test_noise_contrastive_estimation_with_one_class_that_is_drawn(weighed):
    """All of the distribution is on one class, so that the drawn ones are known."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    data, labels, weight, bias = normal(3, 4), np.array([[0, 1], [2, 4], [3, 3]]), normal(5, 4), normal(5, 1)
    factors = np.array([[1.0], [0.5], [2.0]], np.float32)
    x, y = static.data("x", [None, 4]), static.data("y", [None, 2], "int64")
    cost = static.nn.nce(
        x, y, 5, static.data("f", [None, 1]) if weighed else None,
        param_attr=paddle.ParamAttr("w", initializer.Assign(weight)),
        bias_attr=paddle.ParamAttr("b", initializer.Assign(bias)),
        num_neg_samples=3, sampler="custom_dist", custom_dist=[0.0, 0.0, 1.0, 0.0, 0.0],
    )  # fmt: skip
    program = static.default_main_program()
    grads = static.gradients(paddle.sum(cost), [program.var("w"), program.var("b")])
    got, *slopes = run({"x": data, "y": labels, "f": factors} if weighed else {"x": data, "y": labels}, cost, *grads)
    w, b = torch.tensor(weight, requires_grad=True), torch.tensor(bias, requires_grad=True)
    expected = torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0])
    likely = torch.sigmoid(torch.tensor(data) @ w.T + b.T)
    true, noise = likely.gather(1, torch.tensor(labels)), likely[:, [2, 2, 2]]
    want = -(true / (true + expected[labels])).log().sum(1) - (3.0 / (noise + 3.0)).log().sum(1)
    want = want[:, None] * (torch.tensor(factors) if weighed else 1.0)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6)
    want.sum().backward()
    for slope, leaf in zip(slopes, (w, b), strict=True):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sampler", "shares"), [("uniform", [0.25] * 4), ("log_uniform", [0.5, 0.2925, 0.2075, 0.0])])
def test_classes_are_drawn_as_often_as_the_sampler_says(sampler, shares):
    """The gradient of the bias tells which classes were drawn; one label takes part in each sample."""
    x, y = static.data("x", [None, 1]), static.data("y", [None, 1], "int64")
    zero = initializer.Constant(0.0)
    cost = static.nn.nce(x, y, 4, None, paddle.ParamAttr("w", zero), paddle.ParamAttr("b", zero), 50, sampler=sampler)
    slope = static.gradients(paddle.sum(cost), [static.default_main_program().var("b")])[0]
    count = 400
    (got,) = run({"x": np.zeros((count, 1), np.float32), "y": np.full((count, 1), 3)}, slope)
    expected = np.array(shares) * 50
    drawn = got[:3, 0] / (0.25 / (0.5 + expected[:3]))  # each drawn one adds s (1 - s) / (s + q)
    np.testing.assert_allclose(drawn / (50 * count), shares[:3], atol=0.02)


def test_estimation_without_a_meaning_is_refused():
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1], "int64")
    with pytest.raises(InputError, match="nce takes"):
        static.nn.nce(x, static.data("z", [None], "int64"), 5)
    with pytest.raises(OptionError, match="expected 2 classes or more and 1 drawn or more"):
        static.nn.nce(x, y, 1)
    with pytest.raises(OptionError, match="custom_dist must be 5 probabilities"):
        static.nn.nce(x, y, 5, sampler="custom_dist", custom_dist=[0.5, 0.5])
    with pytest.raises(OptionError, match="the layer needs its weight"):
        static.nn.nce(x, y, 5, param_attr=False)


# ---- sums of clicks ----


@pytest.mark.parametrize("weighed", [False, True])
def test_sums_of_clicks_persist(weighed):
    score, click = static.data("score", [None, 1]), static.data("click", [None, 1], "int64")
    sums = static.ctr_metric_bundle(score, click, static.data("f", [None, 1]) if weighed else None)
    scores, clicks = [np.array([[0.25], [0.75]], np.float32), np.array([[0.5]], np.float32)], [[[1], [0]], [[1]]]
    batches = list(zip(scores, map(np.array, clicks), strict=True))
    factors = [np.array([[2.0], [1.0]], np.float32), np.array([[3.0]], np.float32)]
    executor, want = static.Executor("cpu"), np.zeros(6)
    executor.run(static.default_startup_program())
    for (p, c), f in zip(batches, factors if weighed else [np.ones_like(p) for p, _ in batches], strict=True):
        feed = {"score": p, "click": c, **({"f": f} if weighed else {})}
        got = executor.run(feed=feed, fetch_list=list(sums))
        parts = [(p - c) ** 2, abs(p - c), p, 1 / (1 + np.exp(-p)), c, np.ones_like(p)]
        want += [(part * f).sum() for part in parts]
        np.testing.assert_allclose(np.concatenate(got), want, rtol=1e-6)
