"""Finds the node behind which results come apart, where an error differs much from draw to draw."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.program.program import Program
from amp_transpiler.verification.calibrate import PIECE
from amp_transpiler.verification.device_draws import DeviceRuns, outputs_of_draw

__all__ = ["amplifier_of", "ancestors_of"]

logger = logging.getLogger(__name__)

_LEAST_DISTANCE = 2.0**-11  # between two draws, which a node that rounds to float16 may add by itself


def amplifier_of(program: Program, runs: DeviceRuns, output: str, turn: int) -> ir.Node | None:
    """Return the node, of those that an output depends on, that amplifies the distance from exact kernels most.

    Args:
        program: the converted program.
        runs: of the same program on an emulated device; their session may be closed.
        output: the output whose error differs from draw to draw.
        turn: one with a large error.

    Returns:
        A node of the program; None where it cannot be said, because results take too much memory.
    """
    if runs.simulation.result_bytes > PIECE:
        return None
    graph = program.model.graph
    last = next(value.producer() for value in graph.outputs if value.name == output)
    needed = set() if last is None else ancestors_of(last)
    upstream = [node for node in graph if node in needed]
    try:
        apart = _distances(runs, [str(value.name) for node in upstream for value in node.outputs if value.name], turn)
    except RUN_ERRORS as error:
        logger.info("the node behind which draws differ is not known: %s", error)
        return None
    ranked = [(gain, node) for node in upstream if (gain := _gain(node, apart)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


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


def _distances(runs: DeviceRuns, names: Sequence[str], turn: int) -> dict[str, float]:
    """Return how far results of the main graph are from those of exact kernels in a turn: the most of any sample."""
    exposed = runs.simulation.program.clone()
    graph = exposed.model.graph
    present = {str(value.name) for value in graph.outputs}
    values = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.extend(values[name] for name in names if name in values and name not in present)
    apart: dict[str, float] = {}
    with open_program(exposed, emulate=False, fuse=False) as session:
        for index, sample in enumerate(runs.reference.feeds(info.name for info in session.inputs)):
            exact = outputs_of_draw(session, sample, 0, tf32=False)
            noisy = outputs_of_draw(session, sample, runs.draw(turn, index), tf32=runs.is_tf32(turn))
            for name in names:
                if name in exact:
                    apart[name] = max(apart.get(name, 0.0), _distance(exact[name], noisy[name]))
    return apart


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
