"""Faults that are planted in a drawn layer of a drawn network: `diagnose_training` has to name that layer first."""

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle

fc = paddle.static.nn.fc


def overflow(x, width):
    """The gradient grows on its way through the layer, the forward pass does not."""
    return fc(x * 1e-4, width) * 1e4, []


def underflow(x, width):
    return fc(x * 1e3, width) * 1e-4 * 1e-4, []


def lost_epsilon(x, width):
    hidden = fc(x, width)
    small = paddle.abs(hidden - hidden) + 1e-8
    return hidden + hidden / small * 1e-8, [small]


def absorbed(x, width):
    total = fc(x, width) + 3e4
    rest = total - 3e4
    return rest, [total, rest]


def square_too_large(x, width):
    hidden = (fc(x, width) + 1.0) * 600.0
    square = hidden * hidden
    return paddle.sqrt(square + 1.0) / 600.0, [square]


# how a fault is planted -> the loss scale, whether the layer is a residual branch, and the kind of the fault
PLANTED = {
    overflow: (2.0**12, False, "overflow"),
    underflow: (1.0, True, "underflow"),
    lost_epsilon: (2.0**8, True, "departure"),
    absorbed: (2.0**8, True, "departure"),
    square_too_large: (2.0**8, False, "departure"),
}


def built(plant, random, low):
    depth, width = int(random.integers(3, 6)), int(random.choice([8, 16, 32]))
    place, act = int(random.integers(1, depth)), getattr(F, str(random.choice(["relu", "tanh"])))
    scale, is_residual, _ = PLANTED[plant]
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = int(random.integers(1000))
    guilty = [f"fc_{place}.w_0", f"fc_{place}.b_0"]
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        stream, y = act(fc(paddle.static.data("x", [None, 16]), width)), paddle.static.data("y", [None, 1])
        for layer in range(1, depth):
            result, tensors = plant(stream, width) if layer == place else (fc(stream, width), [])
            guilty = [tensor.name for tensor in tensors] or guilty
            stream = stream + act(result) if is_residual else act(result)
        loss = F.mse_loss(fc(stream, 1), y)
        optimizer = paddle.optimizer.SGD(0.01)
        if low:
            optimizer = paddle.static.amp.decorate(optimizer, level="O2", init_loss_scaling=scale)
        optimizer.minimize(loss)
    return main, startup, guilty


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plant", PLANTED)
def test_the_planted_layer_is_named_first(plant, seed):
    main, startup, guilty = built(plant, np.random.default_rng(seed), low=True)
    reference, _, _ = built(plant, np.random.default_rng(seed), low=False)
    scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    random = np.random.default_rng(seed)
    batches = [
        {name: random.normal(size=(16, size)).astype("float32") for name, size in (("x", 16), ("y", 1))}
        for _ in range(2)
    ]
    diagnosis = paddle.amp.debugging.diagnose_training(
        main, batches, reference=reference, scope=scope, executor=executor
    )
    assert diagnosis.guilty in guilty, str(diagnosis)
    assert diagnosis.faults[0].kind == PLANTED[plant][2]
    executor.close()
