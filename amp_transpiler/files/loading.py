"""Loading programs: from a file, a message, an `onnx_ir` model or torch's program."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

import onnx
import onnx.external_data_helper
import onnx_ir as ir

from amp_transpiler.errors import ModelError, innermost_text, visible
from amp_transpiler.files.external_data import check_external_data, check_external_files, external_files
from amp_transpiler.files.model_file import check_model_file
from amp_transpiler.files.source_check import checked_proto, mend_text, settle_declared_types, type_inputs, value_fault
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.proto import from_proto
from amp_transpiler.graph.regions import enter_regions
from amp_transpiler.graph.walk import bodies, scopes
from amp_transpiler.program.program import Program

__all__ = ["ExportedProgram", "Source", "load"]

logger = logging.getLogger(__name__)


class ExportedProgram(Protocol):
    """What `torch.onnx.export` returns, an `ONNXProgram`."""

    @property
    def model(self) -> ir.Model:
        """The model."""


Source: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | ir.Model | Program | ExportedProgram
"""A model in any of its forms."""


def load(model: object, input_types: Mapping[str, str] | None = None) -> Program:
    """Return `model` as a program.

    Inside `fp16_guard()` or `disable_amp()` all nodes are put into that region; a `Program` is left as it is.

    Args:
        model: a path, an `onnx.ModelProto`, an `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. External weights
            of a file stay on disk, memory-mapped, until they are needed. A program or `onnx_ir.Model` is not copied.
            Nodes listed out of order are sorted.
        input_types: input -> element type, for inputs that declare no type. Others keep theirs.

    Raises:
        ModelError: unreadable as ONNX, external data missing or outside the model's folder, nodes in a cycle,
            an input without a type.
        OptionError: an element type does not exist.
        TypeError: an object of another kind.
    """
    if isinstance(model, Program):
        return model
    types = {name: parse_dtype(dtype) for name, dtype in (input_types or {}).items()}
    program = _program_of(model)
    what = "the ModelProto" if isinstance(model, onnx.ModelProto) else "the model"
    type_inputs(program.model, str(program.source or what), types)
    enter_regions(program.model)
    return program


def _program_of(model: object) -> Program:
    if isinstance(model, ir.Model):
        return Program(_checked(model, "the model"))
    if isinstance(model, onnx.ModelProto):
        training_info = _training_info(model, "the ModelProto", None)
        program = Program(_from_proto(model, "the ModelProto", owned=False))
        check_external_files(program.model, "the ModelProto")
        # A message is written out to see its size, so only where that decides.
        program.source_bytes = functools.partial(_bytes_with_message, model, external_files(program.model))
        program.training_info = training_info
        return program
    if isinstance(model, (str, os.PathLike)):
        return _load_file(pathlib.Path(os.fspath(model)))
    if isinstance(inner := getattr(model, "model", None), ir.Model):  # torch.onnx.ONNXProgram
        return Program(_checked(inner, "the model"))
    raise TypeError(
        f"cannot load a {type(model).__name__}: expected a path, an onnx.ModelProto, an onnx_ir.Model or an ONNXProgram"
    )


def _load_file(path: pathlib.Path) -> Program:
    check_model_file(path)
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # each implementation of protobuf has a DecodeError of its own
        raise ModelError(f"{path}: not an ONNX model, or truncated ({innermost_text(error)})") from error
    training_info = _training_info(proto, str(path), path.parent)
    model = _from_proto(proto, str(path), owned=True)
    check_external_data(model, path)
    program = Program(model, path)
    program.source_bytes = functools.partial(_bytes_of, {path, *external_files(model)})
    program.training_info = training_info
    return program


def _bytes_with_message(message: onnx.ModelProto, files: Iterable[pathlib.Path]) -> int:
    return int(message.ByteSize()) + _bytes_of(files)


def _bytes_of(files: Iterable[pathlib.Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _training_info(
    proto: onnx.ModelProto, name: str, folder: pathlib.Path | None
) -> tuple[onnx.TrainingInfoProto, ...]:
    """Return copies of the algorithms that a model carries, which were looked at as its graph is, their data read."""
    if not proto.training_info:
        return ()
    from amp_transpiler.program.training_info import training_graphs  # few models have it

    for whole in training_graphs(proto, name):
        checked_proto(whole, name, owned=True)
    copies = []
    for info in proto.training_info:
        copy = onnx.TrainingInfoProto()
        copy.CopyFrom(info)
        for tensor in (*copy.algorithm.initializer, *copy.initialization.initializer):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _read_external(tensor, name, folder)
        copies.append(copy)
    return tuple(copies)


def _read_external(tensor: onnx.TensorProto, name: str, folder: pathlib.Path | None) -> None:
    where = f"{visible(name, 120)}: '{visible(tensor.name, 60)}' of training_info"
    if folder is None:
        raise ModelError(f"{where} is in a file of its own: load the model's file, not its message")
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, os.fspath(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{where} cannot be read: {innermost_text(error)}") from error
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _from_proto(proto: onnx.ModelProto, name: str, *, owned: bool) -> ir.Model:
    proto, in_order = checked_proto(proto, name, owned=owned)
    model = _deserialize(proto, name, owned=owned)
    settle_declared_types(model)
    _check_functions(model, name)
    if not in_order:
        _sort(model, name)
    return model


def _checked(model: ir.Model, name: str) -> ir.Model:
    """Look at a model that `onnx_ir` has read already; its values may be undefined, its functions endless."""
    _check_defined(model, name)
    settle_declared_types(model)
    _check_functions(model, name)
    check_external_files(model, name)
    if not _is_sorted(model.graph, set()):
        _sort(model, name)
    return model


def _check_functions(model: ir.Model, name: str) -> None:
    if model.functions:  # few models have any
        from amp_transpiler.graph.functions import check_expansion

        check_expansion(model, name)


def _deserialize(proto: onnx.ModelProto, name: str, *, owned: bool) -> ir.Model:
    try:
        return from_proto(proto)
    except Exception as error:  # onnx_ir raises what it likes, about names that are not UTF-8 too
        if not owned:
            copy = onnx.ModelProto()
            copy.CopyFrom(proto)
            proto = copy
        if mend_text(proto):
            return _deserialize(proto, name, owned=True)
        raise ModelError(
            f"{visible(name, 120)}: malformed ONNX: {value_fault(proto) or innermost_text(error)}"
        ) from error


def _sort(model: ir.Model, name: str) -> None:
    try:
        model.graph.sort()
    except ValueError as error:
        raise ModelError(
            f"{visible(name, 120)}: the graph has a cycle: {_on_a_cycle(model)} reads its own result"
        ) from error
    logger.info("nodes of %s were not in topological order: sorted", visible(name))


def _on_a_cycle(model: ir.Model) -> str:
    """Return a node that waits for its own result, in words."""
    for scope in scopes(model):
        needs = {node: _producers(node, scope.graph) for node in scope.graph}
        readers: dict[ir.Node, list[ir.Node]] = {node: [] for node in needs}
        for node, producers in needs.items():
            for producer in producers:
                readers[producer].append(node)
        ready = [node for node, producers in needs.items() if not producers]
        while ready:
            done = ready.pop()
            del needs[done]
            for reader in readers[done]:
                needs[reader].discard(done)
                if not needs[reader]:
                    ready.append(reader)
        if needs:  # cycles, and what waits for them
            path: dict[ir.Node, None] = {}
            node = next(iter(needs))
            while node not in path:
                path[node] = None
                node = next(iter(needs[node]))
            return f"{visible(node.op_type, 60)} '{visible(str(node.name or node.outputs[0].name), 60)}'"
    return "a node"


def _producers(node: ir.Node, graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes of `graph` whose results a node reads, itself or in its bodies."""
    readers = [node, *(inner for _, body in bodies(node) for inner in body.all_nodes())]
    producers = {value.producer() for reader in readers for value in reader.inputs if value is not None}
    return {producer for producer in producers if producer is not None and producer.graph is graph}


def _check_defined(model: ir.Model, name: str) -> None:
    for scope in scopes(model):
        _check_graph_defined(scope.graph, name)
    for function in model.functions.values():
        _check_graph_defined(function.graph, name)


def _check_graph_defined(graph: ir.Graph, name: str) -> None:
    for user in (*graph, graph):
        for value in user.inputs if isinstance(user, ir.Node) else user.outputs:
            if value is None or value.producer() is not None or value.is_graph_input() or value.is_initializer():
                continue
            where = f"{user.op_type} '{user.name}'" if isinstance(user, ir.Node) else "an output of the graph"
            text = f"{where} reads '{visible(str(value.name), 60)}', which nothing computes"
            raise ModelError(f"{visible(name, 120)}: the model is invalid: {text}")


def _is_sorted(graph: ir.Graph, seen: set[ir.Node]) -> bool:
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in seen:
                return False
        if not all(_is_sorted(body, seen) for _, body in bodies(node)):
            return False
        seen.add(node)
    return True
