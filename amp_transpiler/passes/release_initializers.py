"""Initializers that are listed as graph inputs, where that says nothing."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ReleaseInitializers", "lists_every_initializer"]

_LAST_IR_WITH_INITIALIZERS_AS_INPUTS = 3


def lists_every_initializer(model: ir.Model) -> bool:
    """Whether the IR version made every initializer an input, so that being one says nothing."""
    return model.ir_version <= _LAST_IR_WITH_INITIALIZERS_AS_INPUTS


class ReleaseInitializers(Pass[PassResult]):
    """Takes initializers off the list of inputs where nobody overrides them; counts them.

    1. Up to IR version 3 every initializer had to be listed as an input, so the list says nothing: the initializers
       become constants, and the IR version becomes 4, the first to allow that. Those in `keep` stay inputs: a training
       step replaces its states.
    2. From version 4 on a listed initializer is a default that callers may override. It stays, with a note,
       since its owner may not know that this keeps it float32.
    3. In an engine nobody overrides them: TensorRT's parser reads every initializer as weights.

    Args:
        keep: names of the inputs to keep.
        in_engine: an engine is built of the model.
    """

    def __init__(self, keep: Collection[str] = (), *, in_engine: bool = False) -> None:
        self._keep, self._in_engine = keep, in_engine

    def call(self, model: ir.Model) -> PassResult:
        listed = [value for value in model.graph.inputs if value.is_initializer()]
        every = lists_every_initializer(model)
        if not every and not self._in_engine:
            note = (
                f"{len(listed)} initializers are graph inputs, so callers may override them: they stay float32 and are "
                "cast at run time; export without keep_initializers_as_inputs to have them converted"
            )
            return PassResult(model, modified=False, notes=(note,) if listed else ())
        listed = [value for value in listed if value.name not in self._keep]
        for value in listed:
            model.graph.inputs.remove(value)
        note = f"{len(listed)} initializers, listed as inputs, are constants now: TensorRT reads all as weights"
        if every:
            old, model.ir_version = model.ir_version, _LAST_IR_WITH_INITIALIZERS_AS_INPUTS + 1
            note = f"{len(listed)} initializers, inputs by the rules of IR version {old}, are constants now"
        return PassResult(model, modified=every or bool(listed), count=len(listed), notes=(note,) if listed else ())
