"""Whether padding leaves a step as it is: its values are computed for the feeds as they are, and padded, and compared.

Both runs are in float32 on the CPU without Dropout, so that only the padding makes a difference.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence

import numpy as np

from amp_transpiler.autodiff import expand_gradients
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.widen_low_floats import WidenLowFloats
from amp_transpiler.program.assemble import Assembled, assemble
from amp_transpiler.program.fed_shapes import specialise
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.compile import open_ready
from amp_transpiler.runtime.lowering import RANDOM_STEP, ready_to_open
from amp_transpiler.runtime.places import CPUPlace, to_host
from amp_transpiler.runtime.runs import Runs
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.values import to_ort

__all__ = ["Compared", "compare", "drawing"]

_RELATIVE = 1e-3  # of the norm of a value: what float32 sums of other lengths differ by at most
_FLOOR = 1e-5  # of the norm of the largest gradient: some are 0 but for rounding, as that of a key's bias in attention

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """What padding does to a step.

    Attributes:
        shapes: fetched name -> the shape that it has for the feeds as they are.
        padded: fetched name -> the shape that it has for padded feeds.
        faults: what the padding changes, in words.
    """

    shapes: Mapping[str, tuple[int, ...]]
    padded: Mapping[str, tuple[int, ...]]
    faults: tuple[str, ...]


def drawing(program: Program) -> str:
    """Return the first node that draws random numbers, or makes them of the program's state, Dropout apart; or nothing.

    What is drawn for an element hangs on the sizes.
    """
    nodes = [node for node in all_nodes(program.model) if is_standard(node) and node.op_type in RANDOM - {"Dropout"}]
    if RANDOM_STEP in program.persistables:
        counted = program.updates.get(RANDOM_STEP)
        readers = (use.node for use in program.value(RANDOM_STEP).uses())
        nodes += [node for node in readers if all(value.name != counted for value in node.outputs)]
    return next((f"{node.op_type} '{node.name}'" for node in nodes), "")


def compare(program: Program, fetch: Sequence[str], arrays: Arrays, padded: Arrays, scope: Scope) -> Compared | None:
    """Compute a step for feeds as they are and padded, and compare.

    What is fetched, the losses, the gradients of the parameters and the statistics that the forward pass updates must
    be the same; of what is fetched the part that the feeds as they are have.

    Returns:
        What padding does; None if a feed or a value in the scope is missing, as the step itself will say.

    Raises:
        InputError: the feeds do not fit.
    """
    statistics = [name for name, p in program.persistables.items() if p.kind == "statistic" and name in program.updates]
    updates = {program.updates[name]: f"statistic '{name}'" for name in statistics}
    trained = {p.name for p in program.persistables.values() if p.kind == "parameter" and p.name in program.updates}
    gradients = _gradients(program, trained)
    losses = program.outputs if trained else ()
    names = list(dict.fromkeys((*fetch, *losses, *gradients, *updates)))
    if not names:
        return Compared({}, {}, ())
    unpadded, padded_values = (_computed(program, names, feeds, scope) for feeds in (arrays, padded))
    if unpadded is None or padded_values is None:
        return None
    largest = max((_norm(unpadded[name]) for name in gradients), default=0.0)
    faults = []
    for name in names:
        wanted, got = unpadded[name], padded_values[name]
        if got.ndim == wanted.ndim and all(a >= b for a, b in zip(got.shape, wanted.shape, strict=True)):
            got = got[tuple(slice(size) for size in wanted.shape)]
        if fault := _difference(got, wanted, largest * _FLOOR if name in gradients else 0.0):
            faults.append(f"{updates.get(name) or repr(name)} {fault}")
    shapes = {name: unpadded[name].shape for name in fetch}
    return Compared(shapes, {name: padded_values[name].shape for name in fetch}, tuple(faults))


def _gradients(program: Program, parameters: Container[str]) -> list[str]:
    names = (str(value.name) for node in program.model.graph for value in node.outputs if value.name)
    matches = ((re.fullmatch(r"(.+)@GRAD(_\d+)?", name), name) for name in names)
    return [name for match, name in matches if match is not None and match[1] in parameters]


def _computed(program: Program, names: Sequence[str], feeds: Arrays, scope: Scope) -> dict[str, np.ndarray] | None:
    shapes = {name: array.shape for name, array in feeds.items()}
    assembled = _in_float32(assemble(program, names, updates=False), shapes)
    step = open_ready(ready_to_open(assembled, shapes), CPUPlace(), StepOptions(), optimize=False)
    if any(name not in scope for name in step.state) or any(info.name not in feeds for info in step.feeds):
        return None
    state = {name: to_ort(np.asarray(scope[name]).astype(dtype.numpy())) for name, dtype in step.state.items()}
    assert step.session is not None  # something is fetched
    outputs = Runs(CPUPlace()).run(step.session, {info.name: feeds[info.name] for info in step.feeds}, state)
    return {name: np.array(to_host(outputs[step.fetches[name]])) for name in names}


def _in_float32(assembled: Assembled, shapes: Mapping[str, Sequence[int]]) -> Assembled:
    """Make an assembled step float32 and its Dropout let everything pass, in place."""
    model = assembled.model
    specialise(model, shapes)
    expand_gradients(model)
    for node in all_nodes(model):
        if is_standard(node) and node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)  # without `training_mode` it lets everything pass
    propagate_types(model)
    WidenLowFloats(LOW_DTYPES, {str(value.name) for value in model.graph.outputs})(model)
    return assembled


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def _difference(got: np.ndarray, wanted: np.ndarray, floor: float) -> str:
    """Return how a value differs, in words; nothing if only rounding does it."""
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind not in "fV":
        differ = int((got != wanted).sum())
        return f"differs in {differ} of {wanted.size} elements" if differ else ""
    actual, expected = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return "is finite in only one of them"
    off, size = _norm(actual[finite] - expected[finite]), _norm(expected[finite])
    if off <= max(_RELATIVE * size, floor):
        return ""
    return f"differs by {off / size:.2g} of its size" if size else f"is {_norm(actual[finite]):.3g} (norm) instead of 0"
