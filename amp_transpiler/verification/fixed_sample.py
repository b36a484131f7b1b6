"""The program that computes what a program does on one sample, with every shape and every small integer known.

Gradient rules need shapes, and exporters compute them. Here one run tells them: each tensor's shape is written down,
small integers and truth values become constants, and each If gives way to the branch that it takes. The names of values
and nodes stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import Child
from amp_transpiler.child_process.remote import open_plain
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.names import NameAllocator, adopt_initializers
from amp_transpiler.graph.walk import bodies, is_used, reads_of
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.convert_opset import ConvertOpset
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.program.program import Program

__all__ = [
    "SettledProgram",
    "Surveys",
    "drop_unread",
    "inline_branches",
    "is_quantized",
    "run_plain",
    "settle",
    "survey",
    "write_shapes",
]

_Survey: TypeAlias = tuple[dict[str, tuple[int, ...]], dict[str, np.ndarray]]
_OLDEST = 13  # the first opset that gradient rules are written for
_SMALL = 4096  # elements of integers that become constants
_MOST_NESTED = 8  # Ifs inside Ifs
_QUANTIZED = frozenset({ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16})
_INTEGER_PRODUCTS = frozenset({"MatMulInteger", "ConvInteger", "QuantizeLinear", "Add", "Sub"})


@dataclasses.dataclass(frozen=True, slots=True)
class SettledProgram:
    """A program for samples of one kind.

    Attributes:
        program: the program: no If in its main graph, all shapes known.
        key: what it depends on besides the original: equal keys, equal programs.
        targets: output -> the float32 values that it is, or comes from: for labels, the scores.
        values: target -> what it is on this sample.
    """

    program: Program
    key: str
    targets: Mapping[str, tuple[str, ...]]
    values: Mapping[str, np.ndarray]


class Surveys:
    """Surveys of a program as it stands, with what its outputs come from: a sample runs once, whoever asks first.

    Args:
        program: the program; it must stay as it is.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: list[tuple[Mapping[str, Any], _Survey]] = []

    def of(self, feeds: Mapping[str, Any], child: Child | None = None) -> _Survey:
        """Return what `survey` does, for one of the samples.

        Raises:
            RUN_ERRORS: it does not run.
        """
        for known, survey_of_sample in self._known:
            if known is feeds:
                return survey_of_sample
        wanted = {name for output in self._program.model.graph.outputs for name in _felt(output)}
        self._known.append((feeds, survey(self._program, feeds, wanted, child)))
        return self._known[-1][1]


def settle(
    program: Program, feeds: Mapping[str, Any], child: Child | None = None, surveys: Surveys | None = None
) -> SettledProgram:
    """Return `program` as it is on one sample.

    Args:
        program: a typed program without functions; not changed.
        feeds: the sample.
        child: where it runs; None for any child.
        surveys: those of `program`; not used where its opset is raised or a branch of an If takes the place of the If.

    Raises:
        ModelError: the program is of an opset before 13, and cannot be raised.
        RUN_ERRORS: it does not run.
    """
    copy = program.clone()
    copy.source = None
    if opset_of(copy.model, "") < _OLDEST:
        ConvertOpset(_OLDEST)(copy.model)
        copy.touch()
        surveys = None
    taken = inline_branches(copy, feeds, child)
    targets = {str(output.name): tuple(_felt(output)) for output in copy.model.graph.outputs}
    if surveys is None or taken:
        shapes, arrays = survey(copy, feeds, {name for names in targets.values() for name in names}, child)
    else:
        shapes, arrays = surveys.of(feeds, child)
    write_shapes(copy.model.graph, shapes)
    _lift_constants(copy.model.graph)
    by_name = _values(copy.model.graph)
    wanted = {name: array for name, array in arrays.items() if not _is_discrete(by_name[name])}
    integers = {
        name: array
        for name, array in arrays.items()
        if name not in wanted and array.size <= _SMALL and not is_quantized(by_name[name])
    }
    _fix_integers(copy, integers, [by_name[name] for name in wanted])
    copy.touch()
    digest = hashlib.sha256(repr((taken, sorted(shapes.items()))).encode())
    for name, array in sorted(integers.items()):
        digest.update(name.encode() + array.tobytes())
    return SettledProgram(copy, digest.hexdigest(), targets, wanted)


def _felt(output: ir.Value) -> Iterator[str]:
    """Yield the names of the nearest float32 results that a value is computed from, itself if it is one."""
    seen: set[ir.Value] = set()
    pending = [output]
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in seen or node is None:
            continue
        seen.add(value)
        if is_float32(value):
            yield str(value.name)
        else:
            pending += reads_of(node)


def run_plain(
    program: Program, feeds: Mapping[str, Any], names: Sequence[str], child: Child | None = None, *, low: bool = False
) -> list[Any]:
    """Run a program without optimizations, in a child or any child, and return values of its main graph.

    Args:
        program: the program.
        feeds: the sample.
        names: of the values.
        child: where it runs; None for any child.
        low: the program has 16-bit values, and runs emulated: the CPU has few kernels for bfloat16.

    Raises:
        RUN_ERRORS: it does not run.
    """
    with _outputs(program, names) as exposed, open_plain(emulate(exposed) if low else exposed, child) as session:
        return session.run({info.name: feeds[info.name] for info in session.inputs if info.name in feeds}, list(names))


@contextlib.contextmanager
def _outputs(program: Program, names: Sequence[str]) -> Iterator[Program]:
    """Yield the program with other outputs; its own are put back."""
    graph = program.model.graph
    outputs, by_name = list(graph.outputs), _values(graph)
    graph.outputs[:] = [by_name[name] for name in dict.fromkeys(names)]
    program.touch()
    try:
        yield program
    finally:
        graph.outputs[:] = outputs
        program.touch()


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the values of a graph by name: inputs, initializers, results."""
    every = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    return {str(value.name): value for value in every if value.name}


# ---- branches ----


def inline_branches(
    program: Program,
    feeds: Mapping[str, Any],
    child: Child | None = None,
    branches: set[tuple[str, bool]] | None = None,
    *,
    low: bool = False,
) -> list[bool]:
    """Put the branch that is taken in the place of every If of the main graph; return which they were.

    Args:
        program: the program; edited.
        feeds: the sample.
        child: where it runs; None for any child.
        branches: gets the name of the first output of each If, with which branch it took.
        low: see `run_plain`.

    Raises:
        RUN_ERRORS: the program does not run.
    """
    taken: list[bool] = []
    graph = program.model.graph
    for _ in range(_MOST_NESTED):
        ifs = [node for node in graph if node.op_type == "If" and is_standard(node)]
        if not ifs:
            break
        conditions = {str(node.inputs[0].name) for node in ifs if node.inputs[0] is not None}
        asked = sorted(name for name in conditions if constant_of(_values(graph)[name]) is None)
        fetched = dict(zip(asked, run_plain(program, feeds, asked, child, low=low), strict=True)) if asked else {}
        for node in ifs:
            condition = node.inputs[0]
            assert condition is not None
            tensor = constant_of(condition)
            truth = bool(np.asarray(fetched[str(condition.name)] if tensor is None else tensor.numpy()).reshape(-1)[0])
            taken.append(truth)
            if branches is not None:
                branches.add((str(node.outputs[0].name), truth))
            _take_branch(node, dict(bodies(node))["then_branch" if truth else "else_branch"], program)
    return taken


def _take_branch(node: ir.Node, branch: ir.Graph, program: Program) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    results = list(branch.outputs)
    branch.outputs.clear()
    constants = list(branch.initializers.values())
    branch.initializers.clear()
    adopt_initializers(graph, constants)
    inner = list(branch)
    branch.remove(inner)
    graph.insert_before(node, inner)
    names = NameAllocator(program.model)
    for output, result in zip(node.outputs, results, strict=True):
        if output.is_graph_output():  # it keeps its name, and a result may be another's output, too
            copied = ir.Value(name=output.name, type=result.type, shape=result.shape)
            output.name = names.fresh(f"{output.name}_of_if")
            graph.insert_before(node, ir.Node("", "Identity", [result], outputs=[copied], name=names.fresh("taken")))
            output.replace_all_uses_with(copied, replace_graph_outputs=True)
        else:
            output.replace_all_uses_with(result)
    graph.remove(node, safe=True)
    program.touch()


# ---- shapes and integers ----


def survey(
    program: Program, feeds: Mapping[str, Any], wanted: Collection[str] = (), child: Child | None = None
) -> _Survey:
    """Run a program once.

    Args:
        program: the program; not changed.
        feeds: the sample.
        wanted: names of further values to return.
        child: where; None for any child.

    Returns:
        The shapes of all tensors of the main graph; and the integers and truth values in it, with what is wanted.

    Raises:
        RUN_ERRORS: it does not run.
    """
    trial = program.clone()
    graph = trial.model.graph
    names = NameAllocator(trial.model)
    asked: dict[str, str] = {}
    fetched = dict.fromkeys(wanted)
    for value in [value for node in graph for value in node.outputs]:
        if not value.name or not isinstance(value.type, ir.TensorType) or constant_of(value) is not None:
            continue
        shape = ir.Value(name=names.fresh(f"{value.name}_shape"), type=ir.TensorType(ir.DataType.INT64))
        graph.append(ir.Node("", "Shape", [value], outputs=[shape], name=names.fresh("shape_of")))
        asked[str(shape.name)] = str(value.name)
        if _is_discrete(value):
            fetched[str(value.name)] = None
    trial.touch()
    every = [*asked, *fetched]
    arrays = dict(zip(every, run_plain(trial, feeds, every, child), strict=True)) if every else {}
    shapes = {asked[name]: tuple(int(size) for size in arrays[name]) for name in asked}
    for value in graph.inputs:
        array = feeds.get(str(value.name))
        if isinstance(array, np.ndarray):
            shapes[str(value.name)] = array.shape
    return shapes, {name: np.asarray(arrays[name]) for name in fetched}


def is_quantized(value: ir.Value) -> bool:
    """Return whether the integers of a value stand for numbers, not for places or sizes."""
    maker = value.producer()
    if value.dtype == ir.DataType.INT32:
        return maker is not None and maker.op_type in _INTEGER_PRODUCTS
    return value.dtype in _QUANTIZED


def _is_discrete(value: ir.Value) -> bool:
    return value.dtype is not None and (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL)


def write_shapes(graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the values of a graph these shapes."""
    for name, value in _values(graph).items():
        if name in shapes:
            value.shape = ir.Shape(shapes[name])


def _lift_constants(graph: ir.Graph) -> None:
    """Make Constant nodes initializers: a piece of the program would read their results as inputs."""
    for node in list(graph):
        if node.op_type != "Constant":
            continue
        value = node.outputs[0]
        tensor = constant_of(value)
        if tensor is None or value.is_graph_output():
            continue
        lifted = ir.Value(name=value.name, type=value.type, shape=ir.Shape(tensor.numpy().shape), const_value=tensor)
        value.replace_all_uses_with(lifted)
        graph.remove(node, safe=True)
        graph.register_initializer(lifted)


def _fix_integers(program: Program, integers: Mapping[str, np.ndarray], wanted: Collection[ir.Value]) -> None:
    """Make the integers constants, and drop what nobody reads then."""
    graph = program.model.graph
    names = NameAllocator(program.model)
    by_name = _values(graph)
    for name, array in integers.items():
        value = by_name[name]
        node = value.producer()
        if not value.uses() or node is None or _is_random(node):
            continue
        constant = ir.Value(name=names.fresh(f"{name}_settled"), type=value.type, shape=ir.Shape(array.shape))
        constant.const_value = ir.tensor(array, dtype=value.dtype, name=constant.name)
        graph.register_initializer(constant)
        for reader, place in list(value.uses()):  # an output of the graph stays what it is
            reader.replace_input_with(place, constant)
    drop_unread(graph, wanted)


def _is_random(node: ir.Node) -> bool:
    return is_standard(node) and node.op_type in RANDOM


def drop_unread(graph: ir.Graph, wanted: Collection[ir.Value] = ()) -> None:
    """Remove the nodes and initializers of a graph that nobody reads."""
    for node in reversed(list(graph)):
        if not any(is_used(value) or value in wanted for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not is_used(value) and not value.is_graph_input():
            graph.initializers.pop(name)
