"""`diagnose_training` names the parameter or layer that low precision goes wrong in. It is no function of Paddle's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.amp.diagnosis_rows import TrainingDiagnosis
from amp_transpiler.paddle.amp.observed_steps import Steps, gradient_rows
from amp_transpiler.paddle.amp.side_by_side import Feed, Side, start_of
from amp_transpiler.paddle.amp.training_faults import faults
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.static.training import Ranks
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.scope import Scope, global_scope

__all__ = ["diagnose_training"]

_SCALES = (1.0, 2.0**8, 2.0**15)  # 2**16 is beyond float16's range


def diagnose_training(
    program: Program,
    feeds: Iterable[Feed],
    *,
    reference: Program | None = None,
    loss: Variable | str | None = None,
    scope: Scope | None = None,
    executor: Executor | None = None,
    loss_scales: Sequence[float] = _SCALES,
    tolerance: float | None = None,
) -> TrainingDiagnosis:
    """Run some training steps, and say which parameter or layer low precision goes wrong in.

        diagnosis = paddle.amp.debugging.diagnose_training(main, batches[:5], reference=main_in_float32)
        print(diagnosis)  # the gradient of the parameter 'fc_1.w_0' (matmul_v2, ...) overflows at the loss scale ...

    The steps run on copies of the scope, which stays as it is. Each fetches the whole forward pass and all gradients,
    and with a reference those of both programs, so that memory must hold them.

    Args:
        program: a training program.
        feeds: what each step is fed.
        reference: the same network and optimizer without `decorate`. It starts from the state of `program`: master
            weights, moments, random masks; and it leaves out the steps that `program` skips since a gradient
            overflows. Without it, losses and tensors are compared with nothing.
        loss: the loss; the program's first output unless given.
        scope: where the values of `program` live, after its startup program has run; the global scope unless given.
        executor: what runs the steps; one at the default place unless given.
        loss_scales: scales that the gradients of the first step are computed with, beside that of the last step. They
            have no effect where the loss is not scaled.
        tolerance: the relative difference from which losses part and tensors depart; 16 roundings of the lowest format
            unless given.

    Raises:
        InputError: there is no feed, `program` trains nothing or names no loss, or `reference` is of another network.
        OptionError: a scale or the tolerance is no positive number; or other processes train with this one.
    """
    for option, numbers in (("loss_scales", loss_scales), ("tolerance", [] if tolerance is None else [tolerance])):
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise OptionError(f"diagnose_training: {option} must be positive, got {numbers!r}")
    batches = list(feeds)
    if not batches:
        raise InputError("diagnose_training: there is no feed: give one for each step")
    scope = global_scope() if scope is None else scope
    executor = Executor() if executor is None else executor
    if type(executor.ranks()) is not Ranks:
        raise OptionError("diagnose_training runs steps in a single process: call it without torchrun")
    low = Side(program, scope, executor, loss)
    wide = None
    if reference is not None:
        wide = Side(reference, start_of(reference, scope), executor, None if loss is None else low.loss)
        if missing := [name for name in low.gradients if name not in wide.gradients]:
            raise InputError(
                f"diagnose_training: the reference has no gradient of '{missing[0]}': build both programs with the "
                "same code, each under paddle.utils.unique_name.guard()"
            )
    steps = Steps(low, wide, tolerance)
    for batch in batches:
        steps.run(batch)
    scales = [*loss_scales, steps.losses[-1].loss_scale] if low.scales else [None]
    gradients = list(gradient_rows(low, wide, batches[0], scales))
    tensors = list(steps.tensor_rows())
    return TrainingDiagnosis(
        tuple(faults(steps, gradients, tensors)), tuple(steps.losses), tuple(gradients), tuple(tensors)
    )
