"""Prices a form of a computation by itself: what its kernels take, with the gaps between them."""

from __future__ import annotations

from collections.abc import Sequence

from amp_transpiler.cost.forms import Form, Tensor, model_of_form
from amp_transpiler.cost.node_costs import traffic
from amp_transpiler.cost.prediction import Prediction, predicted
from amp_transpiler.targets.devices import DEVICES
from amp_transpiler.targets.price_list import price_list

__all__ = ["busy_seconds_of_form", "seconds_of_form"]


def seconds_of_form(write: Form, inputs: Sequence[Tensor], opset: int) -> float:
    """Return the seconds of the operators that `write` writes, on the device of the price list.

    Args:
        write: the form.
        inputs: types and sizes.
        opset: of ONNX's own domain.
    """
    prediction = _predicted(write, inputs, opset)
    return 1e-3 * prediction.busy_milliseconds + price_list().gap * prediction.launches


def busy_seconds_of_form(write: Form, inputs: Sequence[Tensor], opset: int) -> float:
    """Return the seconds of the kernels alone of the operators that `write` writes.

    Args:
        write: the form.
        inputs: types and sizes.
        opset: of ONNX's own domain.
    """
    return 1e-3 * _predicted(write, inputs, opset).busy_milliseconds


def _predicted(write: Form, inputs: Sequence[Tensor], opset: int) -> Prediction:
    return predicted(traffic(model_of_form(write, inputs, opset)), DEVICES[price_list().device])
