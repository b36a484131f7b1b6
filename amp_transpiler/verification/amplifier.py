"""The node to blame where an error differs much from draw to draw: behind it results are further apart than before."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.program import Program
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32
from amp_transpiler.passes.device_arithmetic.simulate import Simulated
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.verification.accuracy import Reference, named_outputs
from amp_transpiler.verification.calibrate import PIECE
from amp_transpiler.verification.child import RUN_ERRORS
from amp_transpiler.verification.remote import open_program

__all__ = ["amplifier_of", "ancestors_of"]

logger = logging.getLogger(__name__)

_LEAST_DISTANCE = 2.0**-11  # between two draws, which a node that rounds to float16 may add by itself


def amplifier_of(
    program: Program, simulation: Simulated, reference: Reference, output: str, draw: int
) -> ir.Node | None:
    """Return the node, of those that an output depends on, that amplifies the distance of two draws most.

    Args:
        program: the converted program.
        simulation: the same, rewritten into what a device computes, and emulated.
        reference: the samples; the first one runs.
        output: the output whose error differs from draw to draw.
        draw: one with a large error; the other one has no noise.

    Returns:
        A node of the program; None where it cannot be said, because results take too much memory.
    """
    upstream = _upstream(program.model.graph, output)
    names = [str(value.name) for node in upstream for value in node.outputs if value.name]
    if sum(_declared_bytes(value) for node in upstream for value in node.outputs) > PIECE:
        return None
    try:
        quiet, loud = _results(simulation.program, reference, names, (0, draw))
    except RUN_ERRORS as error:
        logger.info("the node behind which draws differ is not known: %s", error)
        return None
    apart = {name: _distance(quiet[name], loud[name]) for name in names if name in quiet}
    ranked = [(gain, node) for node in upstream if (gain := _gain(node, apart)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _declared_bytes(value: ir.Value) -> int:
    """Return the bytes of a float32 result, with 1 for dimensions that are open."""
    sizes = [] if value.shape is None else [size if isinstance(size, int) else 1 for size in value.shape]
    return 4 * math.prod(sizes)


def _upstream(graph: ir.Graph, output: str) -> list[ir.Node]:
    """Return the nodes of the main graph that an output depends on, in order."""
    needed = {value for value in graph.outputs if value.name == output}
    chosen = []
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            chosen.append(node)
            needed.update(value for value in node.inputs if value is not None)
    return chosen[::-1]


def ancestors_of(node: ir.Node) -> set[ir.Node]:
    """Return a node and all that it depends on."""
    reached, waiting = {node}, [node]
    while waiting:
        for value in waiting.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in reached:
                reached.add(producer)
                waiting.append(producer)
    return reached


def _results(
    program: Program, reference: Reference, names: Sequence[str], draws: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """Yield the named results of the main graph in each draw."""
    exposed = program.clone()
    graph = exposed.model.graph
    present = {str(value.name) for value in graph.outputs}
    values = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.extend(values[name] for name in names if name in values and name not in present)
    with open_program(exposed, emulate=False) as session:
        for draw in draws:
            (sample,) = reference.feeds(info.name for info in session.inputs)[:1]
            feeds = {**sample, DRAW: np.array(draw, np.float32), TF32: np.array(0.0, np.float32)}
            yield named_outputs(session, check_feeds(feeds, session.inputs, lenient=True))


def _distance(first: Any, second: Any) -> float:
    """Return the norm of the difference of two float results over that of the first."""
    if not isinstance(first, np.ndarray) or first.dtype.kind not in "fV":
        return 0.0
    wide = [array.astype(np.float64) for array in (first, second)]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    before, after = (array[finite] for array in wide)
    norm = float(np.linalg.norm(before))
    return float(np.linalg.norm(before - after)) / norm if norm else 0.0


def _gain(node: ir.Node, apart: Mapping[str, float]) -> float | None:
    """Return how many times further apart the results of a node are than what it reads."""
    read = [apart.get(str(value.name), 0.0) for value in node.inputs if value is not None]
    results = [apart[str(value.name)] for value in node.outputs if str(value.name) in apart]
    return max(results) / max(_LEAST_DISTANCE, *read) if results and read else None
