"""A loss is one number: checked while building where its shape is known, and by the step itself where it is not."""

from __future__ import annotations

import math

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_float_tensor, is_static, shape_of
from amp_transpiler.graph.origins import ONE_ELEMENT_KEY
from amp_transpiler.program.program import Variable

__all__ = ["as_one_number", "check_loss"]

_REMEDY = "reduce it first, as in paddle.mean(loss) or paddle.sum(loss)"


def check_loss(loss: Variable) -> None:
    """Refuse a loss that is no single floating-point number, or that depends on an open dimension, as Paddle does.

    A loss of unknown rank passes: see `as_one_number`.

    Raises:
        InputError: the loss is of another type, or has another number of elements than one.
    """
    value = loss.value
    if not is_float_tensor(value):
        raise InputError(f"the loss must be one float, and '{loss.name}' is {loss.dtype}: minimize a float variable")
    if value.shape is None:
        return
    if not is_static(value):
        raise InputError(
            f"the loss must have one element, and '{loss.name}' is of shape {list(loss.shape)}, with an open "
            f"dimension: {_REMEDY}"
        )
    count = math.prod(shape_of(value))
    if count != 1:
        raise InputError(
            f"the loss must have one element, and '{loss.name}' is of shape {list(shape_of(value))}, with {count} "
            f"elements: {_REMEDY}"
        )


def as_one_number(loss: Variable) -> Variable:
    """Return the loss, checked; where its rank is unknown, a scalar; then a run fails unless the loss has one element.

    Raises:
        InputError: as `check_loss`.
    """
    check_loss(loss)
    if loss.value.shape is not None:
        return loss
    builder = loss.program.builder("backward")
    scalar = builder.reshape(loss.value, [])
    node = scalar.producer()
    assert node is not None
    node.metadata_props[ONE_ELEMENT_KEY] = f"the loss must have one element, and '{loss.name}' has more: {_REMEDY}"
    return Variable(loss.program, str(scalar.name))
