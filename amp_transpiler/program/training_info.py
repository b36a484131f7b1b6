"""`ModelProto.training_info`: training algorithms that a model carries beside its graph, and that `onnx_ir` drops.

ONNX defines a step of an algorithm as a run of one graph: the model's own followed by the algorithm's. A conversion
works on that graph (`merge`), and takes it apart again in the end (`split`). Everything else sees only the model's own
graph, as ONNX Runtime does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError, innermost_text, visible
from amp_transpiler.graph.names import NameAllocator, values_by_name
from amp_transpiler.graph.proto import proto_bodies, proto_graphs, route_log
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.graph.walk import all_nodes, bodies, reads_of

__all__ = ["Merged", "merge", "split", "training_graphs"]

FIRST_IR = 7  # with `training_info`

# Operators that name values in attributes or update what they read: a graph around them is not taken apart.
_OPAQUE = {("ai.onnx.preview.training", op) for op in ("Gradient", "GraphCall")}


class _Program(Protocol):
    """The part of a `Program` that is read here. `Program` uses this module, so it cannot be imported."""

    model: ir.Model
    training_info: tuple[onnx.TrainingInfoProto, ...]
    merged: Merged | None
    step: TrainingStep | None

    def touch(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """One algorithm inside a merged graph.

    Attributes:
        info: the message as it was.
        outputs: names of its outputs in the merged graph.
        inputs: likewise, of its inputs.
        own_names: name in the merged graph -> name in the message, where they differ.
        opaque: the algorithm stays as it is; the values that it reads are outputs of the merged graph.
    """

    info: onnx.TrainingInfoProto
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    own_names: Mapping[str, str]
    opaque: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """How a merged graph is taken apart.

    Attributes:
        inputs: names of the inputs of the model's own graph.
        outputs: likewise, of its outputs.
        initializers: likewise, of its initializers.
        parts: the algorithms.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: frozenset[str]
    parts: tuple[_Part, ...]

    @property
    def state(self) -> dict[str, str]:
        """Initializer -> value that replaces it after a step: the file's bindings, names as in the merged graph."""
        bindings = {}
        for part in self.parts:
            if not part.opaque:
                names = {inner_name: name for name, inner_name in part.own_names.items()}
                for entry in part.info.update_binding:
                    bindings[names.get(entry.key, entry.key)] = names.get(entry.value, entry.value)
        return bindings


def training_graphs(proto: onnx.ModelProto, name: str) -> Iterator[onnx.ModelProto]:
    """Yield, for each algorithm, a model whose graph is followed by it, so that it can be looked at as a graph is.

    Raises:
        ModelError: the IR version does not have `training_info`, or a binding names nothing.
    """
    if proto.ir_version < FIRST_IR:
        raise ModelError(f"{visible(name, 120)}: has training_info, which IR version {proto.ir_version} does not have")
    held = {tensor.name for tensor in proto.graph.initializer}
    for info in proto.training_info:
        graph = info.algorithm
        initializers = held | {tensor.name for tensor in graph.initializer}
        computed = {output.name for output in (*graph.output, *proto.graph.output)}
        for entry in info.update_binding:
            if entry.key not in initializers:
                raise _unbound(name, entry, f"initializer '{visible(entry.key, 60)}'")
            if entry.value not in computed:
                raise _unbound(name, entry, f"output '{visible(entry.value, 60)}'")
        whole = onnx.ModelProto()
        whole.CopyFrom(proto)
        del whole.training_info[:]
        known = {value.name for value in proto.graph.input}
        whole.graph.input.extend(value for value in graph.input if value.name not in known)
        whole.graph.initializer.extend(graph.initializer)
        whole.graph.sparse_initializer.extend(graph.sparse_initializer)
        whole.graph.node.extend(graph.node)
        whole.graph.output.extend(graph.output)
        yield whole


def _unbound(name: str, entry: onnx.StringStringEntryProto, missing: str) -> ModelError:
    bound = f"'{visible(entry.key, 60)}' to '{visible(entry.value, 60)}'"
    return ModelError(f"{visible(name, 120)}: training_info binds {bound}, and there is no {missing}")


def merge(program: _Program) -> None:
    """Append the algorithms of a program to its graph, in place, and note in `program.merged` how to undo it.

    Initializers that an algorithm updates become inputs with a default, so that they stay float32 and are not folded.

    Raises:
        ModelError: an algorithm is malformed.
    """
    graph = program.model.graph
    shape = tuple(str(v.name) for v in graph.inputs), tuple(str(v.name) for v in graph.outputs)
    initializers = frozenset(graph.initializers)
    parts = tuple(_append(program.model, info) for info in program.training_info)
    program.merged = Merged(*shape, initializers, parts)
    for name in (*program.merged.state, *_opaque_state(parts)):
        value = graph.initializers.get(name)
        if value is not None and not value.is_graph_input():
            graph.inputs.append(value)
    try:
        graph.sort()  # an algorithm may list its nodes in any order
    except ValueError as error:
        raise ModelError("training_info: a node of its algorithm reads its own result, in a cycle") from error
    program.touch()


def _opaque_state(parts: Iterable[_Part]) -> list[str]:
    return [entry.key for part in parts if part.opaque for entry in part.info.update_binding]


def _append(model: ir.Model, info: onnx.TrainingInfoProto) -> _Part:
    """Append one algorithm to the main graph of a model."""
    graph, algorithm = model.graph, info.algorithm
    values = values_by_name(graph)
    if any((node.domain, node.op_type) in _OPAQUE for g in proto_graphs(algorithm) for node in g.node):
        return _pin(model, info)
    shared = {value.name for value in algorithm.input if value.name in values}
    renamed = _clashes(model, algorithm, shared)
    copy = onnx.GraphProto()
    copy.CopyFrom(_renamed(algorithm, renamed) if renamed else algorithm)
    outer = [name for name in _free_names(copy) if name in values]
    for name in outer:
        copy.input.append(onnx.ValueInfoProto(name=name))
    part = _deserialized(copy)
    nodes, inputs, outputs = list(part), list(part.inputs), list(part.outputs)
    tensors = list(part.initializers.values())
    part.remove(nodes)
    part.inputs.clear()
    part.outputs.clear()
    part.initializers.clear()
    graph.extend(nodes)
    for value in inputs:
        name = str(value.name)
        if name in values:
            value.replace_all_uses_with(values[name])
        else:
            graph.inputs.append(value)
    for value in tensors:
        graph.register_initializer(value)
    present = {str(value.name) for value in graph.outputs}
    graph.outputs.extend(value for value in outputs if value.name not in present)
    own_names = {new: old for old, new in renamed.items()}
    names = tuple(value.name for value in copy.input if value.name not in outer)
    return _Part(info, tuple(str(value.name) for value in outputs), names, own_names)


def _deserialized(graph: onnx.GraphProto) -> ir.Graph:
    route_log()
    try:
        return ir.serde.deserialize_graph(graph)
    except Exception as error:  # onnx_ir raises what it likes
        raise ModelError(f"training_info: its algorithm is malformed ONNX: {innermost_text(error)}") from error


def _pin(model: ir.Model, info: onnx.TrainingInfoProto) -> _Part:
    """Keep the types of everything that an algorithm reads, by making it an output."""
    values = values_by_name(model.graph)
    present = {str(value.name) for value in model.graph.outputs}
    for name in _named(info.algorithm):
        value = values.get(name)
        if value is not None and value.producer() is not None and name not in present:
            model.graph.outputs.append(value)
    return _Part(info, (), (), {}, opaque=True)


def _named(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name that an algorithm mentions, in attributes such as `xs` of Gradient too."""
    yield from _free_names(graph)
    for inner in proto_graphs(graph):
        for node in inner.node:
            for attribute in node.attribute:
                for text in (attribute.s, *attribute.strings):
                    yield text.decode(errors="replace")


def _free_names(graph: onnx.GraphProto) -> dict[str, None]:
    """Return the names that a graph reads and does not define."""
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {tensor.values.name for tensor in graph.sparse_initializer}
    defined |= {name for node in graph.node for name in node.output}
    free: dict[str, None] = {}
    for node in graph.node:
        free.update(dict.fromkeys(node.input))
        for body in proto_bodies(node):
            free.update(_free_names(body))
    free.update(dict.fromkeys(value.name for value in graph.output))
    return {name: None for name in free if name and name not in defined}


def _clashes(model: ir.Model, algorithm: onnx.GraphProto, shared: Collection[str]) -> dict[str, str]:
    """Return a new name for each value of an algorithm that is named as one of the model or of another algorithm."""
    names = NameAllocator(model)
    renamed = {}
    for graph in proto_graphs(algorithm):
        defined = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
        defined += [name for node in graph.node for name in node.output]
        for name in dict.fromkeys(defined):
            if name and name not in shared and (new := names.fresh(name)) != name:
                renamed[name] = new
    return renamed


def _renamed(graph: onnx.GraphProto, names: Mapping[str, str]) -> onnx.GraphProto:
    """Return a copy of a graph in which values have other names, in its bodies too."""
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    for inner in proto_graphs(copy):
        for named in (*inner.input, *inner.output, *inner.value_info, *inner.initializer):
            named.name = names.get(named.name, named.name)
        for sparse in inner.sparse_initializer:
            sparse.values.name = names.get(sparse.values.name, sparse.values.name)
        for node in inner.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
    return copy


def split(program: _Program) -> None:
    """Take a merged graph apart again, in place: what no output of the model's own graph needs goes to the algorithms.

    States that the conversion added (master weights, a loss scale) become initializers of the algorithm, and get
    bindings.
    """
    merged = program.merged
    if merged is None:
        return
    graph = program.model.graph
    outputs = {str(value.name): value for value in graph.outputs}
    own_nodes = _needed([outputs[name] for name in merged.outputs])
    program.training_info = tuple(_algorithm(program, merged, part, own_nodes) for part in merged.parts)
    own_outputs = [outputs[name] for name in merged.outputs]
    graph.outputs.clear()
    graph.outputs.extend(own_outputs)
    dropped = [node for node in graph if node not in own_nodes]
    graph.remove(dropped)
    for node in dropped:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    read = {value for node in all_nodes(program.model) for value in node.inputs}
    for value in list(graph.inputs):
        if value.name not in merged.inputs:
            graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if value not in read and name not in merged.initializers:
            del graph.initializers[name]
    program.merged = None
    program.touch()


def _needed(values: Iterable[ir.Value | None]) -> dict[ir.Node, None]:
    """Return the nodes of the main graph that compute values."""
    needed: dict[ir.Node, None] = {}
    pending = [value.producer() for value in values if value is not None]
    while pending:
        node = pending.pop()
        if node is None or node in needed:
            continue
        needed[node] = None
        pending += [value.producer() for value in reads_of(node)]
    return needed


def _algorithm(
    program: _Program, merged: Merged, part: _Part, own_nodes: Mapping[ir.Node, None]
) -> onnx.TrainingInfoProto:
    """Return the message of a converted algorithm."""
    info = onnx.TrainingInfoProto()
    info.CopyFrom(part.info)
    if part.opaque:
        return info
    graph = program.model.graph
    values = values_by_name(graph)
    added = _added_states(program, merged, part)
    outputs = [values[name] for name in dict.fromkeys((*part.outputs, *added.values()))]
    needed = _needed(outputs)
    nodes = [node for node in graph if node in needed and node not in own_nodes]
    algorithm_graph = onnx.GraphProto(name=part.info.algorithm.name, doc_string=part.info.algorithm.doc_string)
    algorithm_graph.node.extend(ir.to_proto(node) for node in nodes)
    algorithm_graph.input.extend(ir.to_proto(values[name]) for name in part.inputs)
    algorithm_graph.output.extend(ir.to_proto(value) for value in outputs)
    shown = {value.name for value in algorithm_graph.output}
    computed = [value for node in nodes for value in node.outputs if value.name and value.name not in shown]
    algorithm_graph.value_info.extend(ir.to_proto(value) for value in computed if value.type is not None)
    for name, tensor in _tensors(nodes, own_nodes, graph, merged, (*added, *_bound(part))):
        algorithm_graph.initializer.append(tensor)
        algorithm_graph.initializer[-1].name = name
    info.algorithm.CopyFrom(_renamed(algorithm_graph, part.own_names))
    bound = {entry.key: entry.value for entry in info.update_binding} | {
        part.own_names.get(name, name): part.own_names.get(output, output) for name, output in added.items()
    }
    _initialise_masters(info, program.step)
    del info.update_binding[:]
    info.update_binding.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in bound.items())
    return info


def _initialise_masters(info: onnx.TrainingInfoProto, step: TrainingStep | None) -> None:
    """Let the initialization set float32 master weights, and the low parameters to casts of them."""
    masters = {state.input: state.master for state in step.parameters if state.master} if step is not None else {}
    held = {tensor.name: tensor.data_type for tensor in info.algorithm.initializer}
    low = {value.name: value.type.tensor_type.elem_type for value in info.algorithm.output}
    updates = {entry.key: entry.value for entry in info.update_binding}
    for entry in list(info.initialization_binding):
        master = masters.get(entry.key, "")
        if master not in held:
            continue
        cast = f"{entry.value}__low"
        to = onnx.helper.make_attribute("to", low[updates[entry.key]])
        node = onnx.NodeProto(op_type="Cast", name=cast, input=[entry.value], output=[cast], attribute=[to])
        info.initialization.node.append(node)
        shape = next(v for v in info.algorithm.output if v.name == updates[entry.key])
        info.initialization.output.append(shape)
        info.initialization.output[-1].name = cast
        info.initialization_binding.add(key=master, value=entry.value)
        entry.value = cast


def _bound(part: _Part) -> list[str]:
    new = {inner_name: name for name, inner_name in part.own_names.items()}
    return [new.get(entry.key, entry.key) for entry in part.info.update_binding]


def _added_states(program: _Program, merged: Merged, part: _Part) -> dict[str, str]:
    """Return the states that the conversion added for an algorithm; what all share goes to the first."""
    known = set(merged.state)
    first = next((p for p in merged.parts if not p.opaque), None)
    states = program.step.states if program.step is not None and part is first else ()
    return {state.input: state.output for state in states if state.input not in known}


def _tensors(
    nodes: Sequence[ir.Node],
    own_nodes: Mapping[ir.Node, None],
    graph: ir.Graph,
    merged: Merged,
    states: Iterable[str],
) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the initializers that only an algorithm needs."""
    shared = set(merged.initializers)
    shared |= {str(v.name) for node in own_nodes for n in (node, *_inner(node)) for v in n.inputs if v is not None}
    read = {str(v.name): None for node in nodes for n in (node, *_inner(node)) for v in n.inputs if v is not None}
    for name in dict.fromkeys((*read, *states)):
        value = graph.initializers.get(name)
        if value is not None and value.const_value is not None and name not in shared:
            yield name, ir.to_proto(value.const_value)


def _inner(node: ir.Node) -> list[ir.Node]:
    return [inner for _, body in bodies(node) for inner in body.all_nodes()]
