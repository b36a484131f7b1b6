"""ONNX programs: loading and saving, walking every scope, names, types, and the verifier that checks them."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.graph.loading import load as load
    from amp_transpiler.graph.program import Program as Program, Variable as Variable
    from amp_transpiler.graph.regions import (
        disable_amp as disable_amp,
        fp16_guard as fp16_guard,
        mark_region as mark_region,
    )
    from amp_transpiler.graph.saving import save as save
    from amp_transpiler.graph.verifier import verify as verify
else:
    __getattr__, __dir__ = lazy_names(__name__)
