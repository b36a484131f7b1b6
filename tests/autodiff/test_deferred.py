"""Gradients that wait for the sizes of what is fed: one program, images and lengths of any size."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, static, tensor, utils
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.deferred_nodes import waiting_nodes
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.static.onnx_import import from_onnx
from tests import support
from tests.autodiff.gradient_check import needs_torch

W = support.array
RATE = 1e-4
SIZES = [(2, 12, 8), (1, 7, 9), (2, 12, 8)]

# The rules that need sizes: weights of convolutions, pools, resizes to computed sizes, padding by reflection.
IMAGES = """(float[n,2,h,w] x) => (float[n,3,p,q] y) {
    c = Conv<pads=[1,1,1,1]>(x, conv_w, conv_b)
    r = Relu(c)
    m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[1,1]>(m)
    d = Conv<pads=[1,1,1,1], strides=[2,2]>(a, deep_w)
    all = Shape(c)
    hw = Slice(all, two, four)
    nc = Slice(all, zero, two)
    size = Concat<axis=0>(nc, hw)
    up = Resize<mode="linear">(d, , , size)
    p = Pad<mode="reflect">(up, pads)
    y = Conv(p, out_w)
}"""


def images(**sizes):
    free = "[n,2,h,w]"
    return support.parse(
        IMAGES.replace(free, f"[{sizes['n']},2,{sizes['h']},{sizes['w']}]") if sizes else IMAGES,
        conv_w=W(4, 2, 3, 3, seed=1),
        conv_b=W(4, seed=2),
        deep_w=W(4, 4, 3, 3, seed=3),
        out_w=W(3, 4, 1, 1, seed=4),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        zero=np.array([0]),
        two=np.array([2]),
        four=np.array([4]),
    )


def trained(model, level="O0"):
    """Return the program of a training step on the mean square of `y`, its loss, and a scope with the first state."""
    startup, scope = static.Program(), static.Scope()
    main = from_onnx(model, startup)
    with utils.unique_name.guard(), static.program_guard(main, startup):
        y = main.var("y")
        loss = tensor.mean(y * y)
        sgd = optimizer.SGD(RATE)
        (sgd if level == "O0" else static.amp.decorate(sgd, level=level, init_loss_scaling=1.0)).minimize(loss)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    return main, loss, scope, exe


def data(n, h, w):
    return W(n, 2, h, w, seed=9)


def test_images_of_any_size_train_as_images_of_a_fixed_size():
    main, loss, scope, exe = trained(images())
    assert {node.domain for node in waiting_nodes(main.model)} == {"amp_transpiler"}
    fixed_scope = None
    for n, h, w in SIZES:
        fixed, fixed_loss, first, fixed_exe = trained(images(n=n, h=h, w=w))
        assert not waiting_nodes(fixed.model)
        fixed_scope = first if fixed_scope is None else fixed_scope
        [got] = exe.run(main, feed={"x": data(n, h, w)}, fetch_list=[loss], scope=scope)
        [want] = fixed_exe.run(fixed, feed={"x": data(n, h, w)}, fetch_list=[fixed_loss], scope=fixed_scope)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    for name in ("conv_w", "conv_b", "deep_w", "out_w"):
        np.testing.assert_allclose(scope[name], fixed_scope[name], rtol=1e-5, atol=1e-7)


@needs_torch
def test_images_of_any_size_as_torch_computes_it():
    import torch
    from torch.nn import functional

    main, loss, scope, exe = trained(images())
    weights = {name: torch.from_numpy(np.array(scope[name])).double().requires_grad_() for name in ("conv_w", "conv_b")}
    others = {name: torch.from_numpy(np.array(scope[name])).double().requires_grad_() for name in ("deep_w", "out_w")}
    weights |= others
    for n, h, w in SIZES:
        x = torch.from_numpy(data(n, h, w)).double()
        c = functional.conv2d(x, weights["conv_w"], weights["conv_b"], padding=1)
        a = functional.avg_pool2d(functional.max_pool2d(c.relu(), 2), 3, 1, 1, count_include_pad=False)
        d = functional.conv2d(a, weights["deep_w"], stride=2, padding=1)
        up = functional.interpolate(d, size=(h, w), mode="bilinear", align_corners=False)
        y = functional.conv2d(functional.pad(up, (1, 1, 1, 1), "reflect"), weights["out_w"])
        expected = (y * y).mean()
        expected.backward()
        [got] = exe.run(main, feed={"x": data(n, h, w)}, fetch_list=[loss], scope=scope)
        np.testing.assert_allclose(got, expected.item(), rtol=1e-5)
        with torch.no_grad():
            for value in weights.values():
                value.sub_(RATE * value.grad)
                value.grad = None
    for name, value in weights.items():
        np.testing.assert_allclose(scope[name], value.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_images_of_any_size_in_low_precision(level):
    main, loss, scope, exe = trained(images(), level)
    plain = trained(images())
    for n, h, w in SIZES[:2]:
        feed = {"x": data(n, h, w)}
        [got] = exe.run(main, feed=feed, fetch_list=[loss], scope=scope)
        [want] = plain[3].run(plain[0], feed=feed, fetch_list=[plain[1]], scope=plain[2])
        np.testing.assert_allclose(np.float32(got), want, rtol=2e-2)


def segmenter(sizes, level):
    """Return what a step of a small U-Net with group normalisation takes: free image sizes, or those that are given."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    main.random_seed = startup.random_seed = 5
    with utils.unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", sizes)
        fine = static.nn.group_norm(static.nn.conv2d(x, 4, 3, padding=1), groups=2, act="relu")
        deep = static.nn.conv2d(functional.max_pool2d(fine, 2), 4, 3, padding=1)
        up = functional.interpolate(deep, size=tensor.shape(fine)[2:], mode="bilinear")
        out = static.nn.conv2d(tensor.concat([up, fine], 1), 1, 3, padding=1)
        loss = tensor.mean(functional.binary_cross_entropy_with_logits(out, tensor.cast(x[:, :1] > 0, "float32")))
        adam = optimizer.Adam(0.01)
        (adam if level == "O0" else static.amp.decorate(adam, level=level, init_loss_scaling=1.0)).minimize(loss)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    return lambda x: exe.run(main, feed={"x": x}, fetch_list=[loss], scope=scope)[0]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_network_that_is_built_trains_on_images_of_any_size(level):
    free = segmenter([None, 2, None, None], level)
    for size in (8, 10):
        x = W(2, 2, size, size, seed=size)
        losses_seen = [free(x) for _ in range(3)]
        assert losses_seen[-1] < losses_seen[0]
        if size == 8:
            fixed = segmenter([2, 2, 8, 8], level)
            np.testing.assert_allclose(losses_seen, [fixed(x) for _ in range(3)], rtol=1e-5 if level == "O0" else 1e-3)


def test_axes_that_are_computed_from_listed_numbers_are_known():
    """Unoptimized exports reshape the axes of reductions: Constant nodes with `value_ints` on both sides."""
    texts = (
        """axes = Constant<value_ints=[-1, -2]>()
            flat = Constant<value_ints=[-1]>()
            reshaped = Reshape(axes, flat)""",
        "reshaped = Constant<value = int64[2] {-1, -2}>()",
    )
    losses = []
    for text in texts:
        model = support.parse(
            f"""(float[n,2,h,w] x) => (float[n,3,1,1] y) {{
                c = Conv(x, k)
                {text}
                y = ReduceMean<keepdims=1>(c, reshaped)
            }}""",
            k=W(3, 2, 3, 3),
        )
        main, loss, scope, exe = trained(model)
        losses.append([exe.run(main, {"x": data(1, 6, 6 + i)}, [loss], scope=scope)[0] for i in range(2)])
    assert losses[0] == losses[1]


def test_a_node_without_a_gradient_is_refused_before_anything_is_fed():
    model = support.parse(
        """(float[n,2,h,w] x) => (float[n,2,p,q] y) {
            c = Conv(x, k)
            y = MaxPool<kernel_shape=[2,2], storage_order=1>(c)
        }""",
        k=W(2, 2, 3, 3),
    )
    with pytest.raises(ModelError, match="storage_order=1"):
        trained(model)


def test_sizes_that_depend_on_data_name_the_node():
    model = support.parse(
        """(float[n,2,h,w] x, int64[2] target) => (float[n,2,p,q] y) {
            c = Conv(x, k)
            all = Shape(c)
            nc = Slice(all, zero, two)
            size = Concat<axis=0>(nc, target)
            [enlarge] y = Resize<mode="linear">(c, , , size)
        }""",
        k=W(2, 2, 3, 3),
        zero=np.array([0]),
        two=np.array([2]),
    )
    main, loss, scope, exe = trained(model)
    with pytest.raises(ModelError, match=r"'enlarge'.*do not follow from the shapes that are fed"):
        exe.run(main, feed={"x": data(1, 6, 6), "target": np.array([8, 8])}, fetch_list=[loss], scope=scope)


def test_a_step_is_written_for_given_sizes_and_refused_without(tmp_path):
    main, _, scope, _ = trained(images())
    with pytest.raises(ModelError, match="do not follow from the shapes that are fed"):
        static.save_training_program(main, tmp_path / "free", scope=scope)
    static.save_training_program(main, tmp_path / "step", feed={"x": (2, 2, 12, 8)}, scope=scope)
    assert (tmp_path / "step.onnx").exists()


def test_a_spectrum_is_one_sided_by_default():
    model = support.parse(
        """(float[n,t,1] x) => (float[n,1,f,b] y) {
            s = STFT(x, hop, , length)
            p = ReduceSumSquare<keepdims=0>(s, last)
            u = Unsqueeze(p, one)
            y = Conv(u, k)
        }""",
        k=W(1, 1, 2, 2),
        hop=np.array(4),
        length=np.array(16),
        last=np.array([-1]),
        one=np.array([1]),
    )
    main, _, scope, exe = trained(model)
    for frames in (5, 7):
        [y] = exe.run(main, feed={"x": W(1, 4 * frames + 12, 1)}, fetch_list=["y"], scope=scope)
        assert y.shape == (1, 1, frames - 1, 8)  # of 9 frequencies


def test_the_branch_that_sizes_choose_is_trained():
    model = support.parse(
        """(float[n,2,h,w] x) => (float[n,2,p,q] y) {
            sizes = Shape(x)
            height = Gather(sizes, two)
            tall = Equal(height, eight)
            c = If(tall) <then_branch = t () => (float[n,2,a,b] t0) { t0 = Conv(x, k) },
                          else_branch = e () => (float[n,2,d,f] e0) { r = Relu(x) e0 = Conv<pads=[1,1,1,1]>(r, k) }>
            y = MaxPool<kernel_shape=[2,2]>(c)
        }""",
        k=W(2, 2, 3, 3),
        two=np.array(2),
        eight=np.array(8),
    )
    main, loss, scope, exe = trained(model)
    for size, expected in ((8, 5), (6, 5)):
        before = np.array(scope["k"])
        y, loss_value = exe.run(main, feed={"x": data(1, size, size)}, fetch_list=["y", loss], scope=scope)
        assert y.shape == (1, 2, expected, expected)
        assert np.isfinite(loss_value)
        assert np.abs(np.array(scope["k"]) - before).max() > 1e-5


# One branch for signals of eight samples, one for four: each squeezes an axis that has one element at its length only.
RATES = """(float[n,1,t] x, int64 rate) => (float[n,2] y) {
    high = Equal(rate, eight)
    y = If(high) <then_branch = h () => (float[n,2] h1) { h0 = Conv(x, k8) h1 = Squeeze(h0, last) },
                 else_branch = l () => (float[n,2] l1) { l0 = Conv(x, k4) l1 = Squeeze(l0, last) }>
}"""


def rates():
    return support.parse(RATES, k8=W(2, 1, 8, seed=1), k4=W(2, 1, 4, seed=2), eight=np.array(8), last=np.array([2]))


def test_a_branch_that_does_not_fit_what_is_fed_gets_no_gradient():
    main, loss, scope, exe = trained(rates())
    for rate, used, other in ((8, "k8", "k4"), (4, "k4", "k8"), (8, "k8", "k4")):
        before = {name: np.array(scope[name]) for name in (used, other)}
        x = W(3, 1, rate, seed=rate)
        y, loss_value = exe.run(main, feed={"x": x, "rate": np.array(rate)}, fetch_list=["y", loss], scope=scope)
        expected = x[:, 0] @ before[used][:, 0].T
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        np.testing.assert_allclose(loss_value, np.mean(expected**2), rtol=1e-5)
        slope = 2 / expected.size * expected.T @ x[:, 0]
        np.testing.assert_allclose(scope[used][:, 0], before[used][:, 0] - RATE * slope, rtol=1e-5)
        np.testing.assert_array_equal(scope[other], before[other])


def test_a_branch_that_does_not_fit_is_no_hindrance_to_inference():
    startup, scope, exe = static.Program(), static.Scope(), static.Executor(CPUPlace())
    main = from_onnx(rates(), startup)
    exe.run(startup, scope=scope)
    for rate in (8, 4):
        x = W(3, 1, rate, seed=rate)
        [y] = exe.run(main, feed={"x": x, "rate": np.array(rate)}, fetch_list=["y"], scope=scope)
        np.testing.assert_allclose(y, x[:, 0] @ scope[f"k{rate}"][:, 0].T, rtol=1e-5)


def test_a_branch_that_does_not_fit_says_why_where_it_is_taken():
    main, loss, scope, exe = trained(rates())
    with pytest.raises(ModelError, match=r"Squeeze .* does not fit|Squeeze .* fails on"):
        exe.run(main, feed={"x": W(3, 1, 8), "rate": np.array(4)}, fetch_list=[loss], scope=scope)
    with pytest.raises(ModelError, match=r"Squeeze"):  # neither fits
        exe.run(main, feed={"x": W(3, 1, 10), "rate": np.array(4)}, fetch_list=[loss], scope=scope)
