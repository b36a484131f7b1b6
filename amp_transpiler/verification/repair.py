"""The nodes that make a result inaccurate, found by running both programs with their intermediate values."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import AMP_DTYPES, LowFormat
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.walk import bodies
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.verification.accuracy import Reference, intermediate_values

__all__ = ["RepairBudget", "worst_nodes"]

logger = logging.getLogger(__name__)


class RepairBudget:
    """The share of the low nodes that one round of repair may make float32.

    It starts small, so that no more becomes float32 than the tolerance needs. From the second round that hardly helped
    it doubles each time: where rounding is amplified everywhere (dynamically quantized models, for one), the nodes
    with the largest errors of their own are not the cause, and only a larger step ends the search.
    """

    _START = 0.05
    _HELPED = 0.95  # a round that leaves more than this share of the error hardly helped

    def __init__(self) -> None:
        self.share = self._START
        self._best = math.inf
        self._stalls = 0

    def update(self, error: float) -> None:
        """Note the largest error of an output before the next round; infinite if a value became non-finite."""
        if math.isfinite(self._best) and not error <= self._HELPED * self._best:
            self._stalls += 1
            if self._stalls > 1:
                self.share = min(1.0, 2.0 * self.share)
        self._best = min(error, self._best)


def worst_nodes(
    prepared: Program,
    low_program: Program,
    assignment: Assignment,
    reference: Reference,
    low: LowFormat,
    share: float = RepairBudget().share,
    *,
    held: bool = False,
) -> dict[str, str]:
    """Return the names of the nodes with the largest errors of their own, each with a reason.

    A node's own error is the relative error of its result minus the largest relative error of its inputs. It is
    infinite if the node reads or computes fp32 values beyond the low format's range, or if its result is non-finite
    while its inputs are finite; all such nodes are returned at once. A control-flow node stands for all low nodes of
    its bodies.

    Args:
        prepared: the fp32 program.
        low_program: the converted program.
        assignment: the decisions, on a program with the same node names as `prepared`.
        reference: inputs to run on; the first sample is used.
        low: the low format.
        share: of the low nodes, the part that may become float32 because of rounding errors.
        held: count the rounding of a low node's result as its own error, not as that of the nodes that read it. Then a
            node is found that is exact but for that, as integers may depend on.

    Raises:
        CannotCompare: one of the programs does not run with its intermediates as outputs.
    """
    candidates = {
        str(node.name)
        for node, decision in assignment.decisions.items()
        if decision.precision == "low" and not decision.forced
    }
    wanted = [str(v.name) for node in prepared.model.graph for v in node.outputs if is_float32(v) and v.name]
    exact = _intermediates(prepared, wanted, reference)
    rounded = _intermediates(emulate(low_program), wanted, reference)
    own = _results(prepared.model.graph, candidates) if held else frozenset()
    errors = {name: _error(exact[name], rounded[name], low, name in own) for name in exact if name in rounded}
    overflowing = {name for name, values in exact.items() if _overflows(values, low)}
    ranked = sorted(_own_errors(prepared.model.graph, errors, overflowing), key=lambda item: -item[1])
    chosen: dict[str, str] = {}
    budget = max(1, int(share * len(candidates)))
    for node, own_error in ranked:
        names = [name for name in _names(node) if name in candidates]
        # The budget is for rounding errors: one overflow spoils a result, so all of them are repaired.
        if not names or own_error <= 0.0 or (len(chosen) >= budget and math.isfinite(own_error)):
            continue
        fault = "became non-finite" if math.isinf(own_error) else f"added an error of {own_error:.1%}"
        chosen.update(dict.fromkeys(names, f"repaired: in {low.name} it {fault}"))
    return chosen


def _results(graph: ir.Graph, nodes: set[str]) -> frozenset[str]:
    """Return the names of the values that the named nodes compute."""
    return frozenset(str(value.name) for node in graph if str(node.name) in nodes for value in node.outputs)


def _names(node: ir.Node) -> Iterator[str]:
    """Yield the names of a node and of the nodes in its bodies."""
    yield str(node.name)
    for _, body in bodies(node):
        for inner in body:
            yield from _names(inner)


def _overflows(exact: np.ndarray, low: LowFormat) -> bool:
    """Whether a finite value becomes infinite when it is rounded to `low`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.isfinite(exact) & ~np.isfinite(exact.astype(low.numpy))).any())


def _own_errors(graph: ir.Graph, errors: Mapping[str, float], overflowing: set[str]) -> Iterator[tuple[ir.Node, float]]:
    """Yield the nodes of the main graph, each with the error that it adds to its inputs' errors."""
    for node in graph:
        if any(value is not None and value.name in overflowing for value in (*node.inputs, *node.outputs)):
            yield node, math.inf
            continue
        results = [errors[str(value.name)] for value in node.outputs if value.name in errors]
        if not results:
            continue
        inherited = [
            errors.get(str(value.name), 0.0)
            for value in node.inputs
            if value is not None and constant_of(value) is None
        ]
        largest = max(inherited, default=0.0)
        if math.isfinite(largest):  # else an earlier node is to blame
            yield node, max(results) - largest


def _error(exact: np.ndarray, rounded: np.ndarray, low: LowFormat, is_held: bool) -> float:
    """Return the relative norm of the difference; infinite if a finite value became, or rounds to, a non-finite one.

    Args:
        exact: in float32.
        rounded: as computed, before it is rounded for the nodes that read it.
        low: the low format.
        is_held: it is low, so that its own rounding counts.
    """
    if exact.shape != rounded.shape:
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        # A float32 node's result is not rounded yet, but a low reader would round it.
        held = rounded.astype(low.numpy).astype(np.float64)
    finite = np.isfinite(exact)
    if not np.isfinite(held[finite]).all():
        return math.inf
    expected = exact[finite].astype(np.float64)
    norm = float(np.linalg.norm(expected))
    found = held if is_held else rounded.astype(np.float64)
    return float(np.linalg.norm(found[finite] - expected)) / norm if norm else 0.0


def _intermediates(program: Program, names: list[str], reference: Reference) -> dict[str, np.ndarray]:
    """Run `program` on the first sample and return the named float values, those that it has."""
    floats = {str(value.name) for node in program.model.graph for value in node.outputs if value.dtype in AMP_DTYPES}
    samples = reference.feeds(str(value.name) for value in program.model.graph.inputs)
    [found] = intermediate_values(program, [name for name in names if name in floats], samples[:1])
    return {name: array.astype(np.float32) for name, array in found.items() if isinstance(array, np.ndarray)}
