"""Writes operators of ONNX Runtime's own domain, which ONNX cannot infer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["CONTRIB", "contrib"]

CONTRIB = "com.microsoft"


def contrib(
    builder: GraphBuilder,
    op_type: str,
    inputs: Sequence[ir.Value],
    attributes: Mapping[str, Any],
    dtype: ir.DataType | None,
    shape: Sequence[int],
) -> ir.Value:
    """Append an operator with one result, of a known type and shape."""
    label = f"{builder.prefix}{op_type}"
    result = ir.Value(name=builder.names.fresh(f"{label}_out0"), shape=ir.Shape(shape))
    result.type = None if dtype is None else ir.TensorType(dtype)
    node = ir.Node(
        CONTRIB,
        op_type,
        inputs,
        list(ir.convenience.convert_attributes(dict(attributes))),
        outputs=[result],
        name=builder.names.fresh(label),
        metadata_props=builder.node_metadata(),
    )
    builder.model.graph.opset_imports.setdefault(CONTRIB, 1)
    if builder.before is not None:
        builder.graph.insert_before(builder.before, node)
    else:
        builder.graph.append(node)
    builder.on_created([result])
    return result
