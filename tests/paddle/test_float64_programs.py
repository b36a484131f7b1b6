"""Losses and inputs of float64 under mixed precision: the scale is float32, as in Paddle, and so are parameters."""

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import optimizer, static

FEED = {"x": np.random.default_rng(0).normal(size=(8, 6)), "y": np.arange(8)[:, None] % 3}
LEVELS = [("O1", "float16"), ("O2", "float16"), ("O1", "bfloat16"), ("O2", "bfloat16")]
OPTIMIZERS = {
    "adam": lambda: optimizer.Adam(0.1),
    "sgd": lambda: optimizer.SGD(0.1),
    "momentum": lambda: optimizer.Momentum(0.1),
    "masters": lambda: optimizer.AdamW(0.1, multi_precision=True),
    "clipped": lambda: optimizer.Lamb(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)),
}


def losses(make, level, dtype, *, parameters="float32", dynamic=True, steps=4):
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    main.random_seed = startup.random_seed = 3
    with static.scope_guard(scope), static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, 6], "float64"), static.data("y", [None, 1], "int64")
        default = paddle.get_default_dtype()
        paddle.set_default_dtype(parameters)
        try:
            loss = F.cross_entropy(static.nn.fc(paddle.cast(x, parameters), 3), y)
        finally:
            paddle.set_default_dtype(default)
        loss = paddle.cast(loss, "float64")
        chosen = make()
        if level != "O0":
            chosen = static.amp.decorate(
                chosen, level=level, dtype=dtype, use_dynamic_loss_scaling=dynamic, init_loss_scaling=64.0
            )
        chosen.minimize(loss)
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        if level == "O2":
            chosen.amp_init(exe.place)
        seen = [exe.run(main, FEED, [loss])[0] for _ in range(steps)]
    assert {value.dtype.name for value in seen} == {"float64"}
    return [float(value) for value in seen]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(("level", "dtype"), LEVELS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loss_of_float64_trains(name, level, dtype, dynamic):
    wanted = losses(OPTIMIZERS[name], "O0", "float32")
    got = losses(OPTIMIZERS[name], level, dtype, dynamic=dynamic)
    assert got[-1] < got[0]
    assert got == pytest.approx(wanted, rel=2e-2)


@pytest.mark.parametrize(("level", "dtype"), [("O0", "float32"), *LEVELS])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_parameter_of_float64_is_named(name, level, dtype):
    with pytest.raises(InputError, match=r"parameter 'fc_0.w_0' is float64, and optimizers train float32"):
        losses(OPTIMIZERS[name], level, dtype, parameters="float64")
