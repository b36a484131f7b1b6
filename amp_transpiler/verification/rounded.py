"""Compares small integers that floats were rounded to, such as the pixels of a picture, as numbers, not one by one.

A pixel near the middle between two steps may round to the other one, which is an error of one step of 255. So the error
of such an output is that of its numbers, over their norm, and the tolerance holds for it. Labels and truth values are
no such numbers: they come from integers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison
from amp_transpiler.verification.compare import relative_error

__all__ = ["RoundedOutputs", "rounded_outputs"]

_SMALL = frozenset({ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16})
_MOVES = frozenset("Identity Transpose Reshape Squeeze Unsqueeze Flatten Slice Gather Concat DepthToSpace".split())


def rounded_outputs(model: ir.Model) -> tuple[str, ...]:
    """Return the outputs of small integers that floats were rounded to, and that were moved at most afterwards."""
    if not any(output.dtype in _SMALL for output in model.graph.outputs):
        return ()
    typed = model.clone()  # a program as it was given may not say of which type its values are
    propagate_types(typed)
    return tuple(str(output.name) for output in typed.graph.outputs if _is_rounded(output))


def _is_rounded(output: ir.Value) -> bool:
    if output.dtype not in _SMALL:
        return False
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None and is_standard(node):
        if node.op_type in ("Cast", "QuantizeLinear"):
            source = node.inputs[0]
            if source is None or source.dtype is None:
                return False
            if source.dtype.is_floating_point():
                return True
            if source.dtype not in _SMALL:
                return False
        elif node.op_type not in _MOVES:
            return False
        value = node.inputs[0]
    return False


class RoundedOutputs:
    """Measures rounded outputs of results that pass by.

    Args:
        names: those outputs.
        outputs: the float32 program's outputs, one dict per sample.
        limits: with a share of the user's own (`mismatch`) integers are counted, and nothing is measured.
    """

    def __init__(self, names: Sequence[str], outputs: Sequence[Mapping[str, Any]], limits: Limits) -> None:
        self._outputs = outputs
        measured = names if limits.mismatch is None else ()
        self._sums = {name: [0.0, 0.0, 0.0] for name in measured}  # squares of differences, of float32; the largest

    def watched(self, results: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the results as they are."""
        for index, result in enumerate(results):
            for name, sums in self._sums.items():
                wanted, got = np.asarray(self._outputs[index].get(name)), np.asarray(result.get(name))
                if wanted.shape == got.shape and wanted.dtype == got.dtype:
                    difference = got.astype(np.float64) - wanted
                    sums[0] += float(np.square(difference).sum())
                    sums[1] += float(np.square(wanted.astype(np.float64)).sum())
                    sums[2] = max(sums[2], float(np.abs(difference).max(initial=0.0)))
            yield result

    def measured(self, rows: Mapping[str, OutputComparison]) -> dict[str, OutputComparison]:
        """Return the comparisons with the errors of rounded outputs in the place of the count of differing integers."""
        comparisons = dict(rows)
        for name, (difference, reference, largest) in self._sums.items():
            if name in comparisons and not comparisons[name].structure_differs:
                relative = relative_error(difference, reference)
                comparisons[name] = dataclasses.replace(
                    comparisons[name], relative=relative, max_abs=largest, mismatched=0, as_numbers=True
                )
        return comparisons
