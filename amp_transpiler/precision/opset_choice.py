"""Which opset a program should be in: its own, or a higher one that lets more of its computation be low.

bfloat16 came to Conv at opset 22, and there MaxPool, Dropout and others lose their CUDA kernels. A higher opset is only
taken where more computing nodes become low and no node that had a kernel loses it, save those for which
`rewrite/equivalents.py` has other words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.dtypes import BFLOAT16, LowFormat
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.ops.limits import NEWEST_OPSET
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of, signature, type_string
from amp_transpiler.precision.constraints import Target, constrain, touches_float32
from amp_transpiler.targets import attribute_values, kernel_table, kernel_type, schema_version, schema_versions

__all__ = ["OpsetChoice", "choose_opset", "opset_for_io"]

_FIRST_OPSET_WITH_BFLOAT16 = 13  # where Cast knows it


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


def opset_for_io(model: ir.Model, low: LowFormat) -> OpsetChoice:
    """Return the opset that a model needs for inputs and outputs in `low`."""
    opset = opset_of(model, "")
    if low is not BFLOAT16 or opset >= _FIRST_OPSET_WITH_BFLOAT16:
        return OpsetChoice(opset)
    reason = f"opset raised to {_FIRST_OPSET_WITH_BFLOAT16}: inputs and outputs are to be bfloat16"
    return OpsetChoice(_FIRST_OPSET_WITH_BFLOAT16, reason)


def choose_opset(
    model: ir.Model,
    target: Target,
    has_equivalent: Callable[[ir.Node], bool],
    can_lower: Callable[[ir.Node], bool] = lambda _: True,
) -> OpsetChoice:
    """Return the opset in which most computing nodes of `model` can be low, then most nodes; the lowest of equals.

    Args:
        model: a typed program.
        target: whose kernels count.
        has_equivalent: whether a node can be written in operators that keep their kernels.
        can_lower: whether anybody wants a node low; others do not count.
    """
    own = opset_of(model, "")
    nodes = [node for node in all_nodes(model) if is_standard(node) and touches_float32(node) and not any(bodies(node))]
    count = _Counter(model, [node for node in nodes if can_lower(node)], target)
    best, most = OpsetChoice(own), count.low(own)
    start = most
    for opset in _candidates(nodes, own):
        low = count.low(opset)
        if low <= most or most == count.all:
            continue
        lost = [node for node in nodes if _loses_kernel(model, node, target, own, opset)]
        if lost and low[0] == most[0]:
            continue  # more nodes to run in exchange for cheap ones is no gain
        if all(has_equivalent(node) for node in lost):
            best, most = OpsetChoice(opset, _reason(own, opset, start, low, count.all, target, lost), tuple(lost)), low
    return best


def _reason(
    own: int,
    opset: int,
    before: tuple[int, int],
    after: tuple[int, int],
    total: tuple[int, int],
    target: Target,
    lost: list[ir.Node],
) -> str:
    which, what = (0, "computing nodes") if after[0] > before[0] else (1, "nodes")
    reason = (
        f"opset {own} -> {opset}: {after[which]} instead of {before[which]} of {total[which]} {what} "
        f"can be {target.low.name}"
    )
    if lost:
        kinds = ", ".join(sorted({node.op_type for node in lost}))
        reason += f"; {kinds} written in operators that keep their kernels"
    return reason


class _Counter:
    """Counts the nodes that could be low at an opset: first those that compute, then all."""

    def __init__(self, model: ir.Model, nodes: list[ir.Node], target: Target) -> None:
        self._model = model
        self._nodes = nodes
        self._target = target
        self._known: dict[tuple[ir.Node, int | None], bool] = {}
        self.all = (sum(node.op_type in COMPUTE for node in nodes), len(nodes))

    def low(self, opset: int) -> tuple[int, int]:
        """Computing nodes and all nodes that could be low at `opset`."""
        low = [node for node in self._nodes if self._can_be_low(node, opset)]
        return sum(node.op_type in COMPUTE for node in low), len(low)

    def _can_be_low(self, node: ir.Node, opset: int) -> bool:
        sig = signature("", node.op_type, opset)
        key = (node, sig.since_version if sig is not None else None)
        if key not in self._known:
            self._known[key] = constrain(self._model, node, self._target, opset).form is not None
        return self._known[key]


def _candidates(nodes: list[ir.Node], own: int) -> Iterator[int]:
    """Opsets above `own` at which the schema of a node of the program changes."""
    kinds = {node.op_type for node in nodes}
    versions = {version for kind in kinds for version in schema_versions("", kind)}
    return iter(sorted(version for version in versions if own < version <= NEWEST_OPSET))


def _loses_kernel(model: ir.Model, node: ir.Node, target: Target, own: int, opset: int) -> bool:
    """Whether `node` would leave its provider at `opset`: it has a float32 kernel at `own`, and none of any type there.

    A node that only the CPU ran must at least still be run by some provider.
    """
    if target.name == "tensorrt" or schema_version("", node.op_type, own) == schema_version("", node.op_type, opset):
        return False
    if constrain(model, node, target, opset).form is not None:
        return False
    wanted = "cpu" if target.name == "cpu" else "cuda"
    before = {provider for provider in ("cuda", "cpu") if _runs_in_float32(node, provider, own)}
    after = {provider for provider in ("cuda", "cpu") if _runs_in_float32(node, provider, opset)}
    return bool(before) and (not after or (wanted in before and wanted not in after))


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
