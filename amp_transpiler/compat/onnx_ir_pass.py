"""A pass for pipelines of `onnx_ir.passes`."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from amp_transpiler.compat.arguments import check_options, converted
from amp_transpiler.program.program import Program, install
from amp_transpiler.report import Report

__all__ = ["MixedPrecisionPass"]


class MixedPrecisionPass(ir.passes.InPlacePass):
    """Converts a model to mixed precision, in place, and checks the result.

    Example::

        import onnx_ir as ir

        from amp_transpiler.compat import MixedPrecisionPass

        passes = ir.passes.PassManager([MixedPrecisionPass(level="auto", tolerance="1%")])
        model = passes(ir.load("model.onnx")).model

    Args:
        options: options of `amp_transpiler.transpile`.

    Attributes:
        report: the report of the last conversion; None before the first.

    Raises:
        TypeError: an option that `transpile` does not have.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        check_options(type(self).__name__, options)
        self._options = options
        self.report: Report | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert a model. One that stays as it is, since nothing of it becomes low, is not touched.

        Raises:
            InputError: the model or an option is wrong; the model is not changed.
            CheckFailed: the result is invalid or not accurate enough; the model is not changed.
        """
        result, report = converted(type(self).__name__, model, self._options, {})
        self.report = report
        changed = bool(report.low_nodes or report.casts or report.casts_removed or result.widened)
        if changed:
            install(model, result.model)
            self.report = dataclasses.replace(report, program=Program(model))
        return ir.passes.PassResult(model, modified=changed)
