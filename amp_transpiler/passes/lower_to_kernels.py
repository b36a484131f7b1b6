"""An older opset for a program that is run here, where the CPU provider has no kernel for a newer schema."""

from __future__ import annotations

import logging

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.standard_opset import OpsetConversionError
from amp_transpiler.targets.releases import Release, choose_release

__all__ = ["lowered_to_kernels"]

logger = logging.getLogger(__name__)


def lowered_to_kernels(model: ir.Model) -> ir.Model:
    """Return a program at an opset at which the installed CPU provider has every operator that it has at all.

    A conversion to bfloat16 raises the opset, and at the higher one the provider may lack an operator, such as RoiAlign
    and the random ones at opset 22. In float32 such a program means the same at the older opset.

    Args:
        model: the program; not changed.

    Returns:
        A copy; the program itself where nothing is missing, or where it needs the newer opset (see `LowerOpset`).
    """
    release, opset = choose_release(None).release, opset_of(model, "")
    names = {node.op_type for node in all_nodes(model) if is_standard(node)}
    target = min((_newest_with_kernel(release, name, opset) for name in names), default=opset)
    if target == opset:
        return model
    from amp_transpiler.passes.lower_opset import LowerOpset  # a kernel is missing to few programs

    lowered = model.clone()
    try:
        LowerOpset(target)(lowered)
    except OpsetConversionError as error:
        logger.info("the CPU provider lacks kernels at opset %d, and the program needs it: %s", opset, error)
        return model
    return lowered


def _newest_with_kernel(release: Release, op_type: str, opset: int) -> int:
    """Return the newest opset up to `opset` at which the CPU provider has a kernel; `opset` if there is none."""
    table, newest = release.kernels("cpu"), opset
    while (version := release.schema_version("", op_type, newest)) is not None:
        if table.has_kernel("", op_type, version, {}):
            return newest
        newest = version - 1
    return opset
