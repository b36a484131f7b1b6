"""Classification losses of batches in which no sample counts: 0, with no gradient, as in Paddle."""

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.paddle import static
from tests.support import array

LEVELS = [("O0", "float32"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")]
FEW = np.array([[255], [1], [255], [2]])
WEIGHTS = np.array([0.5, 0.0, 2.0], np.float32)


def weights():
    return paddle.to_tensor(WEIGHTS)


LOSSES = {  # name -> (loss, labels of which none counts)
    "255": (lambda x, y: F.cross_entropy(x, y, ignore_index=255), 255),
    "-100": (F.cross_entropy, -100),
    "a class": (lambda x, y: F.cross_entropy(x, y, ignore_index=1), 1),
    "weights": (lambda x, y: F.cross_entropy(x, y, weight=weights(), ignore_index=255), 255),
    "weights of 0": (lambda x, y: F.cross_entropy(x, y, weight=weights()), 1),
    "soft labels with weights of 0": (
        lambda x, y: F.cross_entropy(x, F.one_hot(y[:, 0], 3), weight=weights(), soft_label=True),
        1,
    ),
    "probabilities": (lambda x, y: F.cross_entropy(F.softmax(x), y, ignore_index=255, use_softmax=False), 255),
    "log probabilities": (lambda x, y: F.nll_loss(F.log_softmax(x), y[:, 0], ignore_index=255), 255),
    "layer": (paddle.nn.CrossEntropyLoss(ignore_index=255), 255),
    "two": (lambda x, y: F.cross_entropy(x, y, ignore_index=255) + F.cross_entropy(x * 2, y, ignore_index=255), 255),
}


def trained(loss_of, level, dtype):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, 5]), static.data("y", [None, 1], "int64")
        loss = loss_of(static.nn.fc(x, 3, weight_attr="w"), y)
        optimizer = paddle.optimizer.SGD(0.1, multi_precision=True)
        if level != "O0":
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype)
        optimizer.minimize(loss)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    if level != "O0":
        optimizer.amp_init(paddle.CPUPlace(), scope)
    return main, loss, scope, executor


@pytest.mark.parametrize("level", LEVELS, ids="-".join)
@pytest.mark.parametrize("name", LOSSES)
def test_no_sample_counts(name, level):
    loss_of, ignored = LOSSES[name]
    main, loss, scope, executor = trained(loss_of, *level)
    before = np.array(scope["w"])
    (value,) = executor.run(main, {"x": array(4, 5), "y": np.full((4, 1), ignored)}, [loss], scope=scope)
    assert float(value) == 0.0
    np.testing.assert_array_equal(scope["w"], before)


def test_some_samples_count():
    """The mean is over those: the numbers of Paddle for an index of 0 and above."""
    main, loss, scope, executor = trained(LOSSES["255"][0], "O0", "float32")
    x = array(4, 5)
    scores = x @ np.array(scope["w"])
    log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    (value,) = executor.run(main, {"x": x, "y": FEW}, [loss], scope=scope)
    np.testing.assert_allclose(value, -(log[1, 1] + log[3, 2]) / 2, rtol=1e-5)
