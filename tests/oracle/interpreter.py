"""An ONNX program run node by node on numpy, each operator in float32, each 16-bit result rounded to its format.

Written for the tests alone, apart from the package's emulation, which it judges: nothing here imports the package.
ONNX's reference evaluator computes the operators; `fast_operators` replaces its slow ones. A fused operator computes in
float32 inside and rounds its results. Values carry their types as numpy arrays: what is 16-bit follows from the file's
constants and casts, and from the type variables of ONNX's schemas.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
from onnx.reference import ReferenceEvaluator
from threadpoolctl import ThreadpoolController

from tests.oracle.fast_operators import FAST
from tests.oracle.formats import FLOATS, float_dtype, is_low, rounded, widen
from tests.oracle.microsoft import MICROSOFT

Scope = collections.ChainMap[str, Any]

_THREADS = ThreadpoolController()  # several threads of BLAS for small products wait for each other on a busy machine

_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype")
# The type of their results is that of their first input or of an attribute, which their schemas do not say.
_LIKE_FIRST_INPUT = {"EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
# They only move elements, so they take arrays of any type; the type variables of sequences say nothing of elements.
_MOVES = set(
    "Reshape Transpose Squeeze Unsqueeze Flatten Shape Size SequenceConstruct SequenceInsert SequenceErase "
    "SequenceAt SequenceLength SplitToSequence ConcatFromSequence".split()
)


class CannotEvaluate(Exception):
    """An operator is unknown here, or fails; the message names the node."""


class _Step:
    """A node, its attributes read once; graphs among them are `_Graph`s."""

    def __init__(self, node: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        self.node, self.opsets = node, opsets
        self.op_type, self.domain = node.op_type, "" if node.domain == "ai.onnx" else node.domain
        self.inputs, self.outputs = list(node.input), list(node.output)
        values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
        self.options: dict[str, Any] = {
            name: _Graph(value, opsets) if isinstance(value, onnx.GraphProto) else value
            for name, value in values.items()
        }
        self.evaluator: ReferenceEvaluator | None = None
        self.constant: Any = None
        self.body: list[_Step] | None = None  # of the function that it calls

    def reads(self) -> Iterable[str]:
        """Yield the names that it reads, and those that the bodies inside it mention."""
        yield from self.inputs
        for body in self.options.values():
            if isinstance(body, _Graph):
                yield from body.outputs
                for step in body.steps:
                    yield from step.reads()

    def __str__(self) -> str:
        return f"{self.op_type} '{self.node.name}'"


class _Graph:
    def __init__(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
        self.steps = [_Step(node, opsets) for node in graph.node]
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.output_types = [value.type for value in graph.output]
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self.constants |= {t.values.name: _dense(t) for t in graph.sparse_initializer}


class Interpreter:
    """A program ready to run.

    Args:
        model: the program; a path is read with its external data.
    """

    def __init__(self, model: onnx.ModelProto | str | os.PathLike[str]) -> None:
        model = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
        self._opsets = _opsets(model.opset_import)
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._graph = _Graph(model.graph, self._opsets)
        # A low constant's id -> it, and its float32 copy.
        self._wide = {id(c): (c, widen(c)) for c in self._graph.constants.values() if is_low(c)}
        self._ends: dict[int, list[str]] = collections.defaultdict(list)  # a step -> the values that it reads last
        last = {name: index for index, step in enumerate(self._graph.steps) for name in step.reads()}
        for name, index in last.items():
            if name and name not in self._graph.outputs:
                self._ends[index].append(name)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the program on `feeds`; those it has no input for are ignored.

        Raises:
            CannotEvaluate: an operator is unknown here, or fails.
        """
        graph = self._graph
        fed = {name: value for name, value in feeds.items() if name in graph.inputs}
        scope: Scope = collections.ChainMap({"": None, **graph.constants, **fed})
        with _THREADS.limit(limits=1):
            for index, step in enumerate(graph.steps):
                self._step(step, scope)
                for name in self._ends[index]:
                    scope.maps[0].pop(name, None)
        return {name: scope[name] for name in graph.outputs}

    def _step(self, step: _Step, scope: Scope) -> None:
        inputs = [scope[name] for name in step.inputs]
        try:
            with np.errstate(all="ignore"):
                if (step.domain, step.op_type) in self._functions:
                    results = self._call(step, inputs)
                elif not step.domain and step.op_type in _OWN:
                    results = _OWN[step.op_type](self, step, inputs, scope)
                else:
                    results = self._operator(step, inputs)
        except CannotEvaluate:
            raise
        except Exception as error:
            raise CannotEvaluate(f"{step}: {type(error).__name__}: {error}") from error
        for name, value in zip(step.outputs, results, strict=False):
            if name:
                scope[name] = np.asarray(value) if isinstance(value, np.generic) else value

    def _operator(self, step: _Step, inputs: list[Any]) -> list[Any]:
        moves = not step.domain and step.op_type in _MOVES
        fed = inputs if moves else [self._widened(value) for value in inputs]
        if step.evaluator is None:
            step.evaluator = _evaluator(step, fed)
        results = step.evaluator.run(None, {f"in{i}": value for i, value in enumerate(fed) if value is not None})
        if moves:
            return list(results)
        remaining = iter(results)
        listed = [next(remaining) if name else None for name in step.outputs]
        dtypes = _result_dtypes(step, inputs)
        return [value if dtype is None else rounded(value, dtype) for value, dtype in zip(listed, dtypes, strict=True)]

    def _widened(self, value: Any) -> Any:
        """Make a low value float32; the copy of a constant of the file is kept."""
        known = self._wide.get(id(value))
        return widen(value) if known is None or known[0] is not value else known[1]

    def _body(self, body: _Graph, scope: Scope, fed: Iterable[Any]) -> list[Any]:
        inner = scope.new_child(body.constants | dict(zip(body.inputs, fed, strict=True)))
        for step in body.steps:
            self._step(step, inner)
        return [inner[name] for name in body.outputs]

    def _call(self, step: _Step, inputs: list[Any]) -> list[Any]:
        function = self._functions[step.domain, step.op_type]
        if step.body is None:
            opsets = self._opsets | _opsets(function.opset_import)
            step.body = [_Step(node, opsets) for node in _body_of(function, step.node)]
        scope: Scope = collections.ChainMap({"": None} | dict.fromkeys(function.input))
        scope.update(zip(function.input, inputs, strict=False))
        for inner in step.body:
            self._step(inner, scope)
        return [scope[name] for name in function.output]

    # Operators whose results depend on more than their inputs' values in float32.

    def _run_constant(self, step: _Step, *_: Any) -> list[Any]:
        if step.constant is None:
            tensor = step.options.get("value")
            step.constant = self._operator(step, [])[0] if tensor is None else onnx.numpy_helper.to_array(tensor)
        return [step.constant]

    def _run_constant_of_shape(self, step: _Step, inputs: list[Any], *_: Any) -> list[Any]:
        tensor = step.options.get("value")
        filler = np.zeros(1, np.float32) if tensor is None else onnx.numpy_helper.to_array(tensor)
        return [np.full(tuple(inputs[0].tolist()), filler.reshape(-1)[0], filler.dtype)]

    def _run_cast(self, step: _Step, inputs: list[Any], *_: Any) -> list[Any]:
        to = FLOATS.get(step.options["to"])
        if to is None or inputs[0].dtype.kind in "OUS":
            return self._operator(step, inputs)
        return [inputs[0].astype(to)]

    def _run_cast_like(self, step: _Step, inputs: list[Any], *_: Any) -> list[Any]:
        to = float_dtype(inputs[1])
        if to is None or inputs[0].dtype.kind in "OUS":
            return self._operator(step, inputs)
        return [inputs[0].astype(to)]

    def _run_same(self, _step: _Step, inputs: list[Any], *_: Any) -> list[Any]:
        return inputs[:1] or [None]  # an Optional of nothing

    def _run_has_element(self, _step: _Step, inputs: list[Any], *_: Any) -> list[Any]:
        return [np.asarray(bool(inputs) and inputs[0] is not None)]

    def _run_if(self, step: _Step, inputs: list[Any], scope: Scope) -> list[Any]:
        branch = "then_branch" if np.asarray(inputs[0]).item() else "else_branch"
        return self._body(step.options[branch], scope, ())

    def _run_loop(self, step: _Step, inputs: list[Any], scope: Scope) -> list[Any]:
        body: _Graph = step.options["body"]
        trips = None if inputs[0] is None else int(np.asarray(inputs[0]).item())
        going = True if len(inputs) < 2 or inputs[1] is None else bool(np.asarray(inputs[1]).item())
        carried, turn = inputs[2:], 0
        types = body.output_types[1 + len(carried) :]
        collected: list[list[Any]] = [[] for _ in types]
        while going and (trips is None or turn < trips):
            fed = [np.asarray(turn, np.int64), np.asarray(True), *carried]
            condition, *results = self._body(body, scope, fed)
            going, turn = bool(np.asarray(condition).item()), turn + 1
            carried = results[: len(carried)]
            _append(collected, results[len(carried) :])
        return [*carried, *(np.stack(c) if c else _nothing(t) for c, t in zip(collected, types, strict=True))]

    def _run_scan(self, step: _Step, inputs: list[Any], scope: Scope) -> list[Any]:
        body: _Graph = step.options["body"]
        count = step.options["num_scan_inputs"]
        if step.opsets[""] < 9:
            raise CannotEvaluate(f"{step}: its batches, which only opset 8 has, are unknown here")
        states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        outs = len(body.outputs) - len(states)
        axes, backwards = _of(step, "scan_input_axes", count), _of(step, "scan_input_directions", count)
        rows = [np.moveaxis(a, axis, 0)[:: _way(back)] for a, axis, back in zip(scanned, axes, backwards, strict=True)]
        collected: list[list[Any]] = [[] for _ in range(outs)]
        for row in zip(*rows, strict=True):
            results = self._body(body, scope, [*states, *map(np.asarray, row)])
            states = results[: len(states)]
            _append(collected, results[len(states) :])
        axes, backwards = _of(step, "scan_output_axes", outs), _of(step, "scan_output_directions", outs)
        stacked = (np.stack(c[:: _way(back)], axis) for c, axis, back in zip(collected, axes, backwards, strict=True))
        return [*states, *stacked]

    def _run_sequence_map(self, step: _Step, inputs: list[Any], scope: Scope) -> list[Any]:
        body: _Graph = step.options["body"]
        collected: list[list[Any]] = [[] for _ in body.outputs]
        for index in range(len(inputs[0])):
            fed = [value[index] if isinstance(value, (list, tuple)) else value for value in inputs]
            _append(collected, self._body(body, scope, fed))
        return list(collected)


_OWN = {
    "Constant": Interpreter._run_constant,
    "ConstantOfShape": Interpreter._run_constant_of_shape,
    "Cast": Interpreter._run_cast,
    "CastLike": Interpreter._run_cast_like,
    "Identity": Interpreter._run_same,
    "Optional": Interpreter._run_same,
    "OptionalGetElement": Interpreter._run_same,
    "OptionalHasElement": Interpreter._run_has_element,
    "If": Interpreter._run_if,
    "Loop": Interpreter._run_loop,
    "Scan": Interpreter._run_scan,
    "SequenceMap": Interpreter._run_sequence_map,
}


def _append(columns: list[list[Any]], values: list[Any]) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _of(step: _Step, name: str, count: int) -> list[int]:
    return step.options.get(name) or [0] * count


def _way(backwards: int) -> int:
    return -1 if backwards else 1


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if item.domain == "ai.onnx" else item.domain: item.version for item in imports}


def _evaluator(step: _Step, fed: list[Any]) -> ReferenceEvaluator:
    """Return ONNX's evaluator of a model of the one node, with inputs of the types that `fed` have."""
    alone = onnx.NodeProto()
    alone.CopyFrom(step.node)
    alone.domain = step.domain
    del alone.input[:]
    alone.input.extend("" if value is None else f"in{index}" for index, value in enumerate(fed))
    infos = [_typed(f"in{index}", value) for index, value in enumerate(fed) if value is not None]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in step.outputs if name]
    graph = onnx.helper.make_graph([alone], "alone", infos, results)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in step.opsets.items()]
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports), new_ops=[*FAST, *MICROSOFT])


def _typed(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        return onnx.helper.make_tensor_value_info(name, element, value.shape)
    return onnx.helper.make_empty_tensor_value_info(name)


@functools.cache
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _result_dtypes(step: _Step, inputs: list[Any]) -> list[np.dtype | None]:
    """Return the float type that each result has; None: as it is computed, which is no 16-bit type."""
    options = step.options
    named = next((FLOATS.get(options[name]) for name in _TYPE_ATTRIBUTES if name in options), None)
    schema = _schema(step.op_type, step.opsets.get(step.domain, 1), step.domain)
    first = next(filter(None, map(float_dtype, inputs)), None)
    if schema is None:  # of com.microsoft: all results are of the type of the data
        return [first for _ in step.outputs]
    bound: dict[str, np.dtype] = {}
    for index, value in enumerate(inputs):
        dtype = float_dtype(value)
        if dtype is not None:
            bound.setdefault(schema.inputs[min(index, len(schema.inputs) - 1)].type_str, dtype)
    if step.op_type == "DequantizeLinear":  # of the type of the scale unless an attribute names one
        named = named or float_dtype(inputs[1])
    elif named is None and step.op_type in _LIKE_FIRST_INPUT and not set(options) & set(_TYPE_ATTRIBUTES):
        named = float_dtype(inputs[0])
    formals = [schema.outputs[min(index, len(schema.outputs) - 1)].type_str for index in range(len(step.outputs))]
    return [named or bound.get(formal) or (np.dtype(np.float32) if first != np.float64 else None) for formal in formals]


def _nothing(type_: onnx.TypeProto) -> np.ndarray:
    """Return the stack of no values of a type: what a Loop without a turn collects."""
    tensor = type_.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    return np.empty((0, *dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _dense(tensor: onnx.SparseTensorProto) -> np.ndarray:
    values = onnx.numpy_helper.to_array(tensor.values)
    indices = onnx.numpy_helper.to_array(tensor.indices)
    dense = np.zeros(tuple(tensor.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _body_of(function: onnx.FunctionProto, call: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return a function's nodes with the attributes of one call in place of the references to them."""
    attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
    return [_filled(node, attributes) for node in function.node]


def _filled(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        copy = onnx.AttributeProto()
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue
            copy.CopyFrom(attributes[attribute.ref_attr_name])
            copy.name = attribute.name
        else:
            copy.CopyFrom(attribute)
            for graph in (copy.g, *copy.graphs):
                inner = [_filled(body, attributes) for body in graph.node]
                del graph.node[:]
                graph.node.extend(inner)
        result.attribute.append(copy)
    return result
