"""The program: an ONNX model being worked on."""

from __future__ import annotations

import pathlib

import onnx
import onnx_ir as ir

from amp_transpiler.graph.proto import to_proto

__all__ = ["Program"]


class Program:
    """An ONNX model being worked on, with its values inside.

    Attributes:
        model: the model as `onnx_ir` holds it; weights of a loaded file stay memory-mapped until they are saved.
        source: the file it was loaded from, or None.
        notes: remarks of the passes that prepared it, for the report.
    """

    def __init__(self, model: ir.Model, source: pathlib.Path | None = None) -> None:
        self.model = model
        self.source = source
        self.notes: list[str] = []

    def __repr__(self) -> str:
        origin = self.source or self.model.graph.name or "in memory"
        return f"Program({str(origin)!r}, {self.model.graph.num_nodes()} nodes)"

    def to_onnx(self) -> onnx.ModelProto:
        """Return the program as a protobuf message, weights inside."""
        return to_proto(self.model)

    def clone(self) -> Program:
        """Return an independent copy; weights, which are never changed in place, are shared."""
        copy = Program(self.model.clone(), self.source)
        copy.notes = list(self.notes)
        return copy


def install(target: ir.Model, content: ir.Model) -> None:
    """Give `target` the graph, functions, versions and metadata of `content`, which must not be used afterwards."""
    target.graph = content.graph
    target.functions.clear()
    target.functions.update(content.functions)
    target.ir_version = content.ir_version
    target.metadata_props.clear()
    target.metadata_props.update(content.metadata_props)
