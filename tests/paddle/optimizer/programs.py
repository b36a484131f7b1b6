"""Tiny training programs: a linear model with one parameter, or two, and a squared error."""

import dataclasses

import ml_dtypes
import numpy as np
import onnx_ir as ir

from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.optimizer import Optimizer
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

NUMPY = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass
class Trainer:
    """A program, its startup program and a scope."""

    main: Program
    startup: Program
    scope: Scope
    executor: Executor

    def run(self, feed=None, fetch=()):
        return self.executor.run(self.main, feed=feed or {}, fetch_list=list(fetch), scope=self.scope)

    def state(self, suffix):
        """The one value of the scope whose name ends so."""
        (name,) = [name for name in self.scope if name.endswith(suffix)]
        return self.scope[name]


def gradient_fed(
    optimizer: Optimizer, initial: dict[str, np.ndarray], *, dtype=ir.DataType.FLOAT, guard=False, **about
):
    """A trainer whose gradients are fed, as `g_NAME`; with `guard` also `bad`, a bool scalar, is.

    Args:
        optimizer: applied to (parameter, fed gradient) pairs.
        initial: parameter -> initial value, in float32.
        dtype: element type of the parameters and gradients in the main program.
        guard: feed `found_inf`.
        about: parameter -> more fields of its `Persistable`.
    """
    main, startup = Program(), Program()
    with program_guard(main, startup), unique_name.guard():
        pairs = []
        for name, value in initial.items():
            declared = Persistable(name, "parameter", **about.get(name, {}))
            create_persistable(declared, value.shape, lambda _, __, value=value: value, startup=startup, main=Program())
            main.add_persistable(declared, dtype, value.shape)
            pairs.append((main.var(name), data(f"g_{name}", list(value.shape), NUMPY[dtype].name)))
        optimizer.found_inf = data("bad", [], "bool").value if guard else None
        optimizer.startup_program = startup
        optimizer.apply_gradients(pairs)
    return started(main, startup, dtype)


def linear(optimizer: Optimizer, w: np.ndarray, *, rows: int = 8) -> Trainer:
    """A trainer of `sum((x w - y)^2)`, x fed as [rows, n], y as [rows, 1]; the loss is fetched as `loss`."""
    main, startup = Program(), Program()
    with program_guard(main, startup), unique_name.guard():
        x, y = data("x", [rows, w.shape[0]]), data("y", [rows, 1])
        create_persistable(Persistable("w", "parameter"), w.shape, lambda _, __: w)
        error = x @ main.var("w") - y
        b = main.builder()
        loss = Variable(main, b.matmul(b.transpose(error.value, [1, 0]), error.value).name)
        nodes, pairs = optimizer.minimize(loss, startup)
        assert nodes
        assert [(p.name, g.name) for p, g in pairs] == [("w", "w@GRAD")]
    return started(main, startup)


def started(main: Program, startup: Program, dtype=ir.DataType.FLOAT) -> Trainer:
    """Run the startup program, and round the parameters in the scope to the type that the main program has."""
    trainer = Trainer(main, startup, Scope(), Executor(CPUPlace()))
    trainer.executor.run(startup, scope=trainer.scope)
    for parameter in main.all_parameters():
        trainer.scope[parameter.name] = trainer.scope[parameter.name].astype(NUMPY[dtype])
    return trainer
