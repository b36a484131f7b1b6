"""Image classification as Paddle's own tests train it in mixed precision: a ResNet in pure float16, and with lists."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from amp_transpiler.paddle.static import amp

CLASSES = 10
DEPTH = 8  # 6 n + 2 layers; Paddle's tests have 32


class Images(paddle.io.Dataset):
    """Random images and labels."""

    def __init__(self, count, seed):
        self.count, self.rng = count, np.random.default_rng(seed)

    def __getitem__(self, index):
        return self.rng.random([3, 32, 32], np.float32), self.rng.integers(0, 9, [1])

    def __len__(self):
        return self.count


def batches(count, size, seed):
    images = Images(count, seed)
    return paddle.batch(lambda: (images[i] for i in range(len(images))), batch_size=size, drop_last=True)


def resnet(image, guard, depth=DEPTH):
    def conv_bn(x, filters, kernel, stride, padding, act="relu", bias=False):
        conv = nn.Conv2D(x.shape[1], filters, kernel, stride=stride, padding=padding, bias_attr=bias)
        return nn.BatchNorm(filters, act=act)(conv(x))

    def block(x, filters, stride):
        out = conv_bn(conv_bn(x, filters, 3, stride, 1), filters, 3, 1, 1, act=None, bias=None)
        short = x if x.shape[1] == filters else conv_bn(x, filters, 1, stride, 0, act=None)
        return nn.functional.relu(paddle.add(x=out, y=short))

    x = conv_bn(image, 16, 3, 1, 1)
    with guard():
        for filters, first in ((16, 1), (32, 2), (64, 2)):
            for index in range((depth - 2) // 6):
                x = block(x, filters, first if index == 0 else 1)
    return nn.functional.avg_pool2d(x, kernel_size=8, stride=1)


OPTIMIZERS = {
    "momentum": lambda pure: paddle.optimizer.Momentum(
        0.001, 0.9, weight_decay=paddle.regularizer.L2Decay(1e-4), multi_precision=pure
    ),
    "nesterov": lambda pure: paddle.optimizer.Momentum(
        0.001, 0.9, use_nesterov=True, weight_decay=paddle.regularizer.L2Decay(1e-4), multi_precision=pure
    ),
    "adamw": lambda _: paddle.optimizer.AdamW(0.001, epsilon=1e-8, weight_decay=0.0, multi_precision=True),
    "lars": lambda pure: paddle.incubate.optimizer.LarsMomentumOptimizer(0.001, 0.9, multi_precision=pure),
}


def train(optimizer, pure):
    """Return the losses of training and of the test program behind it."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.seed(123)
    scope = paddle.static.Scope()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        image = paddle.static.data("pixel", [-1, 3, 32, 32], "float32")
        label = paddle.static.data("label", [-1, 1], "int64")
        logits = paddle.static.nn.fc(x=resnet(image, amp.fp16_guard), size=CLASSES, activation="softmax")
        loss = paddle.sum(nn.functional.softmax_with_cross_entropy(logits, label, return_softmax=False))
        test = main.clone(for_test=True)
        chosen = OPTIMIZERS[optimizer](pure)
        if pure:
            chosen = amp.decorate(chosen, init_loss_scaling=128.0, use_dynamic_loss_scaling=True, use_pure_fp16=True)
        chosen.minimize(loss)
        place = paddle.CPUPlace()
        exe = paddle.static.Executor(place)
        feeder = paddle.base.DataFeeder(place=place, feed_list=[image, label])
        exe.run(startup)
        if pure:
            chosen.amp_init(place, test_program=test, use_fp16_test=True)
        seen = []
        for program, reader in ((main, batches(64, 16, 123)), (test, batches(8, 4, 456))):
            runs = (exe.run(program, feed=feeder.feed(batch), fetch_list=[loss]) for batch in reader())
            seen.append([float(run[0]) for run in runs])
        return seen


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resnet_in_pure_float16_follows_float32(optimizer):
    low, high = train(optimizer, True), train(optimizer, False)
    for low_loss, expected in zip(low, high, strict=True):
        assert len(low_loss) > 1
        np.testing.assert_allclose(low_loss, expected, rtol=0.01, atol=1e-5)


@pytest.mark.slow
def test_image_classification_with_lists_and_lamb():
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed, startup.random_seed = 123, 456
    scope = paddle.static.Scope()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        image = paddle.static.data("pixel", [-1, 3, 32, 32], "float32")
        label = paddle.static.data("label", [-1, 1], "int64")
        x = image
        for filters in (8, 16):
            conv = paddle.static.nn.conv2d(x, filters, 3, padding=1, act=None, bias_attr=False)
            x = nn.functional.max_pool2d(paddle.static.nn.batch_norm(conv, act="relu"), 2, 2)
        logits = paddle.static.nn.fc(x=x, size=CLASSES, activation="softmax")
        cost, predicted = nn.functional.softmax_with_cross_entropy(logits, label, return_softmax=True)
        loss, accuracy = paddle.mean(cost), paddle.static.accuracy(input=predicted, label=label)
        test = main.clone(for_test=True)
        optimizer = amp.decorate(
            optimizer=paddle.optimizer.Lamb(learning_rate=0.001),
            amp_lists=amp.AutoMixedPrecisionLists(custom_black_varnames={"loss", "conv2d_0.w_0"}),
            init_loss_scaling=8.0,
            use_dynamic_loss_scaling=True,
        )
        optimizer.minimize(loss)
        scaled, scale = optimizer.get_scaled_loss(), optimizer.get_loss_scaling()
        exe = paddle.static.Executor(paddle.CPUPlace())
        feeder = paddle.base.DataFeeder(place=paddle.CPUPlace(), feed_list=[image, label])
        exe.run(startup)
        for batch in batches(48, 16, 1)():
            high, low, factor = exe.run(main, feed=feeder.feed(batch), fetch_list=[loss, scaled, scale])
            np.testing.assert_allclose(low, high * factor, rtol=1e-6)
        for batch in batches(8, 4, 2)():
            low_loss, share = exe.run(test, feed=feeder.feed(batch), fetch_list=[loss, accuracy])
            assert np.isfinite(low_loss)
            assert 0 <= share <= 1
    stats = amp.debugging._get_op_stats_list(main)[0]
    assert (stats["conv2d"].fp16_calls, stats["conv2d"].fp32_calls) == (1, 1)  # the one that reads conv2d_0.w_0
