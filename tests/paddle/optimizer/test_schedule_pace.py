"""Scripts that step a schedule after each batch or each epoch: the rates are Paddle's, or an error says why not."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import optimizer, static

BATCHES, EPOCHS = 4, 3


def rates(schedule, *, each_batch, each_epoch):
    """Return the rate of each step of a script in the form of Paddle's documentation."""
    main, startup, found = static.Program(), static.Program(), []
    with static.program_guard(main, startup), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        loss = paddle.mean(static.nn.fc(static.data("x", [None, 2]), 1))
        optimizer.SGD(schedule).minimize(loss)
        executor = static.Executor("cpu")
        executor.run(startup)
        for _ in range(EPOCHS):
            for _ in range(BATCHES):
                fetched = executor.run(main, {"x": np.ones((3, 2), np.float32)}, [loss, "learning_rate_0"])
                found.append(float(fetched[1]))
                if each_batch:
                    schedule.step()
            if each_epoch:
                schedule.step()
    return found


def test_a_step_after_each_batch_is_what_the_program_counts():
    found = rates(optimizer.lr.ExponentialDecay(1.0, 0.5), each_batch=True, each_epoch=False)
    assert found == [0.5**step for step in range(BATCHES * EPOCHS)]


@pytest.mark.parametrize("each_epoch", [True, False])
def test_steps_per_epoch_makes_a_step_after_each_epoch_right(each_epoch):
    schedule = optimizer.lr.ExponentialDecay(1.0, 0.5, steps_per_epoch=BATCHES)
    found = rates(schedule, each_batch=False, each_epoch=each_epoch)
    assert found == [0.5**epoch for epoch in range(EPOCHS) for _ in range(BATCHES)]


def test_a_step_after_each_epoch_without_it_is_refused(caplog):
    with pytest.raises(InputError, match=r"StepDecay.step\(\) was called after 4 steps .*, steps_per_epoch=4\)"):
        rates(optimizer.lr.StepDecay(1.0, 1, 0.5), each_batch=False, each_epoch=True)
    assert "steps_per_epoch=STEPS_IN_AN_EPOCH" in caplog.text  # the first call cannot tell it from a resumed run


def test_schedules_that_python_drives_follow_either_script():
    factors = [0.5**epoch for epoch in range(BATCHES * EPOCHS)]
    found = rates(optimizer.lr.LambdaDecay(1.0, lambda epoch: 0.5**epoch), each_batch=False, each_epoch=True)
    assert found == [factor for factor in factors[:EPOCHS] for _ in range(BATCHES)]
    found = rates(optimizer.lr.LambdaDecay(1.0, lambda epoch: 0.5**epoch), each_batch=True, each_epoch=False)
    assert found == factors
