"""Graphs of ONNX: walking every scope, names, types, shapes, sizes, marks on nodes, and the verifier."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.graph.regions import (
        disable_amp as disable_amp,
        fp16_guard as fp16_guard,
        mark_region as mark_region,
    )
    from amp_transpiler.graph.verifier import verify as verify
else:
    __getattr__, __dir__ = lazy_names(__name__)
