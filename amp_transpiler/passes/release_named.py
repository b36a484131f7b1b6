"""Named initializers that are listed as graph inputs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ReleaseNamed"]


class ReleaseNamed(Pass[PassResult]):
    """Takes the named initializers off the list of inputs: they become constants; counts them.

    Args:
        names: their names.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def call(self, model: ir.Model) -> PassResult:
        listed = [value for value in model.graph.inputs if value.is_initializer() and value.name in self._names]
        for value in listed:
            model.graph.inputs.remove(value)
        return PassResult(model, modified=bool(listed), count=len(listed))
