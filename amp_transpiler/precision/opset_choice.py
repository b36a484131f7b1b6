"""Which opset a program should be in: its own, or a higher one that lets more of its computation be low.

bfloat16 came to Conv at opset 22, and there MaxPool, Dropout and others lose their CUDA kernels. A higher opset is only
taken where more computing nodes become low and no node that had a kernel loses it, save those for which
`rewrite/equivalents.py` has other words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.graph.schema import opset_of, signature
from amp_transpiler.graph.walk import all_nodes, bodies, is_standard
from amp_transpiler.kernels import attribute_values, kernel_table, kernel_type, schema_version
from amp_transpiler.precision.constraints import Target, constrain, touches_float32
from amp_transpiler.graph.schema import type_string

__all__ = ["COMPUTE", "NEWEST_OPSET", "OpsetChoice", "choose_opset"]

NEWEST_OPSET = 26  # what ONNX Runtime 1.31 is made for

# The operators whose time low precision is for.
COMPUTE = frozenset({"Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})


@dataclasses.dataclass(frozen=True, slots=True)
class OpsetChoice:
    """The opset chosen.

    Attributes:
        opset: the version to be in.
        reason: one sentence; empty where the program stays as it is.
        rewrite: nodes that need an equivalent there, having lost their kernel.
    """

    opset: int
    reason: str = ""
    rewrite: tuple[ir.Node, ...] = ()


def choose_opset(model: ir.Model, target: Target, has_equivalent: Callable[[ir.Node], bool]) -> OpsetChoice:
    """Return the opset in which most computing nodes of `model` can be low; the lowest of equals.

    Args:
        model: a typed program.
        target: whose kernels count.
        has_equivalent: whether a node can be written in operators that keep their kernels.
    """
    own = opset_of(model, "")
    nodes = [node for node in all_nodes(model) if is_standard(node) and touches_float32(node) and not any(bodies(node))]
    counted = [node for node in nodes if node.op_type in COMPUTE] or nodes
    best, most = OpsetChoice(own), _low_nodes(model, counted, target, own)
    for opset in _candidates(nodes, own):
        if most == len(counted):
            break
        low = _low_nodes(model, counted, target, opset)
        if low <= most:
            continue
        lost = [node for node in nodes if _loses_kernel(model, node, target, own, opset)]
        if all(has_equivalent(node) for node in lost):
            what = "computing nodes" if counted is not nodes else "nodes"
            reason = f"opset {own} -> {opset}: {low} instead of {most} of {len(counted)} {what} can be {target.low.name}"
            if lost:
                kinds = ", ".join(sorted({node.op_type for node in lost}))
                reason += f"; {kinds} written in operators that keep their kernels"
            best, most = OpsetChoice(opset, reason, tuple(lost)), low
    return best


def _candidates(nodes: list[ir.Node], own: int) -> Iterator[int]:
    """Opsets above `own` at which the schema of a node of the program changes."""
    kinds = {node.op_type for node in nodes}
    versions = {
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.name in kinds
    }
    return iter(sorted(version for version in versions if own < version <= NEWEST_OPSET))


def _low_nodes(model: ir.Model, nodes: list[ir.Node], target: Target, opset: int) -> int:
    return sum(constrain(model, node, target, opset).form is not None for node in nodes)


def _loses_kernel(model: ir.Model, node: ir.Node, target: Target, own: int, opset: int) -> bool:
    """Whether `node` has a kernel in float32 at `own`, and none, neither low nor float32, at `opset`."""
    if target.name == "tensorrt" or schema_version("", node.op_type, own) == schema_version("", node.op_type, opset):
        return False
    provider = "cpu" if target.name == "cpu" else "cuda"
    return (
        _runs_in_float32(node, provider, own)
        and not _runs_in_float32(node, provider, opset)
        and constrain(model, node, target, opset).form is None
    )


def _runs_in_float32(node: ir.Node, provider: str, opset: int) -> bool:
    sig = signature("", node.op_type, opset)
    if sig is None:
        return False
    types: dict[str, str] = {}
    for values, formal in ((node.inputs, sig.input), (node.outputs, sig.output)):
        for index, value in enumerate(values):
            slot, text = formal(index), type_string(value.type) if value is not None else None
            if slot is not None and text is not None:
                types.setdefault(slot.type, kernel_type(text))
    version = schema_version("", node.op_type, opset)
    return kernel_table(provider).has_kernel("", node.op_type, version, types, attribute_values(node))
