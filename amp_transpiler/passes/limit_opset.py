"""An opset that ONNX Runtime reads; operators that are newer are written out by their own definition."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.standard_opset import standard_opset

__all__ = ["LimitOpset"]

_OPSET_OF_CASTS = 13  # Cast knows bfloat16 from here on


class LimitOpset(Pass[PassResult]):
    """Brings a model to an opset of at most `newest`; counts the nodes that it writes out.

    1. ONNX's own domain is imported as `""`. A model that does not use it imports it too, for the casts that the
       conversion inserts.
    2. A model above `newest` that uses nothing newer declares `newest` (see `LowerOpset`).
    3. Operators that came after `newest` are replaced by their function body, where ONNX defines one.

    Args:
        newest: the newest opset that ONNX Runtime knows.
        otherwise: the opset for a model that imports none.

    Raises:
        OpsetConversionError: an operator is newer and has no such body.
        ModelError: an operator cannot be written out, since the rank of its inputs is not known.
    """

    def __init__(self, newest: int, otherwise: int = _OPSET_OF_CASTS) -> None:
        self._newest = newest
        self._otherwise = otherwise

    def call(self, model: ir.Model) -> PassResult:
        imports = model.graph.opset_imports
        spelled = "" in imports
        if not spelled:  # the domain has a second spelling, which stands in files that other tools wrote
            imports[""] = imports.pop("ai.onnx", self._otherwise)
        if standard_opset(model) <= self._newest:
            return PassResult(model, modified=not spelled)
        from amp_transpiler.passes.written_out import lower_by_definition  # few models are newer than ONNX Runtime

        written = lower_by_definition(model, self._newest)
        kinds = ", ".join(sorted(set(written)))
        note = f"newer than opset {self._newest}, so written out by definition: {kinds}"
        return PassResult(model, modified=True, count=len(written), notes=(note,) if written else ())
