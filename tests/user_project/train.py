"""Trains a program in mixed precision, and fine-tunes a loaded one, as a typed project would."""

import numpy as np
import numpy.typing as npt

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import nn, optimizer, paddle, static

Float32 = npt.NDArray[np.float32]


def built() -> tuple[static.Program, static.Program, static.Variable]:
    paddle.enable_static()
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 8], "float32")
        y = static.data("y", [None, 1], "float32")
        layer = nn.Linear(8, 1)
        with amp.fp16_guard():
            guess = F.relu(layer(x))
        loss = paddle.mean(F.mse_loss(guess, y))
        adam = optimizer.AdamW(learning_rate=1e-3, multi_precision=True)
        static.amp.decorate(adam, use_pure_fp16=True).minimize(loss, startup)
    return main, startup, loss


def trained(batches: list[tuple[Float32, Float32]]) -> list[float]:
    main, startup, loss = built()
    losses: list[float] = []
    with static.Executor(amp.CPUPlace()) as executor:
        executor.run(startup)
        for x, y in batches:
            (value,) = executor.run(main, feed={"x": x, "y": y}, fetch_list=[loss])
            losses.append(float(value))
    return losses


def fine_tuned(path: str) -> static.Program:
    startup = static.Program()
    main = static.from_onnx(path, startup_program=startup)
    with static.program_guard(main, startup):
        label = static.data("label", [None, 1], "int64")
        loss = F.cross_entropy(main.var("logits"), label)
        amp.decorate(optimizer.Momentum(0.1), use_pure_fp16=True).minimize(loss, startup)
    return main
