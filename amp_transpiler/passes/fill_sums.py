"""Joins the fill of a tensor with one number and the sum of a number with it to one fill."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.match import Binding
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["FillSums"]

logger = logging.getLogger(__name__)


def _adds_a_number(total: Binding) -> bool:
    """Whether a constant scalar is added to a fill that nothing else reads."""
    number, filled = constant_array(total["number"]), total["filled"]
    return number is not None and not number.ndim and len(filled.uses()) == 1 and not filled.is_graph_output()


def _summed(total: Binding) -> Mapping[str, object]:
    attribute, number = total.node("filled").attributes.get("value"), constant_array(total["number"])
    assert number is not None  # it was asked for
    filler = np.zeros(1, np.float32) if attribute is None else np.asarray(tensor_of(attribute).numpy())
    value = (filler + number).astype(number.dtype).reshape(1)
    return {"value": ir.Tensor(value, dtype=total["filled"].dtype)}


_ROWS = (
    Rewrite(
        "Add(filled:ConstantOfShape(shape), number)",
        "ConstantOfShape(shape)",
        applies=_adds_a_number,
        attributes=_summed,
    ),
)


class FillSums(Pass[PassResult]):
    """Turns `ConstantOfShape(shape) + number` into a ConstantOfShape of the sum; counts them.

    PyTorch's exporter writes that for `torch.full`. It is one kernel less.
    """

    def call(self, model: ir.Model) -> PassResult:
        if count := rewrite(model, _ROWS):
            logger.info("%d sums of a filled tensor and a number are part of the fill", count)
        return PassResult(model, modified=bool(count), count=count)
