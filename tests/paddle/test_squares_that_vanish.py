"""A root of squares that float16 rounds to 0: its gradient is infinite, and a custom black list is the remedy."""

import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, paddle, static
from amp_transpiler.paddle import nn

X = np.full((2, 4), 1e-5, np.float32)


@pytest.mark.parametrize(("black", "is_skipped"), [((), True), (("sqrt", "elementwise_mul"), False)])
def test_a_step_through_a_root_of_zero_is_skipped_unless_squares_stay_float32(black, is_skipped):
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        hidden = static.nn.fc(static.data("x", [2, 4]), 3, weight_attr=nn.initializer.Constant(1.0))
        loss = paddle.mean(paddle.sqrt(hidden * hidden))
        lists = static.amp.AutoMixedPrecisionLists(custom_black_list=list(black))
        adam = static.amp.decorate(optimizer.Adam(0.1), amp_lists=lists, level="O1", init_loss_scaling=1.0)
        adam.minimize(loss, startup)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    adam.amp_init(CPUPlace(), scope)
    [loss_value, infinite] = exe.run(main, {"x": X}, [loss, adam.found_inf.name], scope=scope)
    assert bool(infinite) == is_skipped
    assert float(loss_value) == pytest.approx(0.0 if is_skipped else 4e-5, rel=1e-2)
