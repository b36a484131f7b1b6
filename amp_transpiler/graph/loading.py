"""Loading programs: from a file, a message, an `onnx_ir` model or torch's program."""

from __future__ import annotations

import logging
import os
import pathlib

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.external_data import check_external_data
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.proto import from_proto, proto_graphs
from amp_transpiler.graph.walk import bodies, scopes

__all__ = ["load", "sort_if_needed"]

logger = logging.getLogger(__name__)


def load(model: object) -> Program:
    """Return `model` as a program.

    Args:
        model: a path, an `onnx.ModelProto`, an `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. External weights
            of a file stay on disk, memory-mapped, until they are needed. A program or `onnx_ir.Model` is not copied.
            Nodes listed out of order are sorted.

    Raises:
        ModelError: unreadable as ONNX, external data missing or outside the model's folder, nodes in a cycle.
        TypeError: an object of another kind.
    """
    if isinstance(model, Program):
        return model
    if isinstance(model, ir.Model):
        return _sorted(Program(model))
    if isinstance(model, onnx.ModelProto):
        _check_proto(model, "the ModelProto")
        return _sorted(Program(_deserialize(model, "the ModelProto")))
    if isinstance(model, (str, os.PathLike)):
        return _load_file(pathlib.Path(os.fspath(model)))
    if isinstance(inner := getattr(model, "model", None), ir.Model):  # torch.onnx.ONNXProgram
        return _sorted(Program(inner))
    raise TypeError(
        f"cannot load a {type(model).__name__}: expected a path, an onnx.ModelProto, an onnx_ir.Model or an ONNXProgram"
    )


def _sorted(program: Program) -> Program:
    sort_if_needed(program.model, "the model")
    return program


def _load_file(path: pathlib.Path) -> Program:
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; give the .onnx file in it")
    if not path.is_file():
        raise ModelError(f"{path}: not a regular file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path}: the file is empty")
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # each implementation of protobuf has a DecodeError of its own
        raise ModelError(f"{path}: not an ONNX model, or truncated ({_first_line(error)})") from error
    _check_proto(proto, str(path))
    model = _deserialize(proto, str(path))
    check_external_data(model, path)
    sort_if_needed(model, str(path))
    return Program(model, path)


def _check_proto(proto: onnx.ModelProto, name: str) -> None:
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{name}: not an ONNX model: it has no graph or imports no operator set")
    if proto.ir_version < 3:
        raise ModelError(f"{name}: IR version {proto.ir_version} predates ONNX 1.0; export the model again")
    if any(scope.sparse_initializer for scope in proto_graphs(proto.graph)):
        raise ModelError(f"{name}: sparse initializers are not supported; store them as dense initializers")


def _deserialize(proto: onnx.ModelProto, name: str) -> ir.Model:
    try:
        return from_proto(proto)
    except Exception as error:
        raise ModelError(f"{name}: malformed ONNX: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def sort_if_needed(model: ir.Model, name: str) -> None:
    """Sort the nodes of every scope topologically if one is out of order.

    Raises:
        ModelError: the nodes form a cycle, or one reads an undefined value.
    """
    _check_defined(model, name)
    if not _is_sorted(model.graph, set()):
        try:
            model.graph.sort()
        except ValueError as error:
            raise ModelError(f"{name}: the graph has a cycle: {_first_line(error)}") from error
        logger.info("nodes of %s were not in topological order: sorted", name)


def _check_defined(model: ir.Model, name: str) -> None:
    for scope in scopes(model):
        for user in (*scope.graph, scope.graph):
            for value in user.inputs if isinstance(user, ir.Node) else user.outputs:
                if value is None or value.producer() is not None or value.is_graph_input() or value.is_initializer():
                    continue
                where = f"{user.op_type} '{user.name}'" if isinstance(user, ir.Node) else "the graph's outputs"
                raise ModelError(f"{name}: the model is invalid: {where} reads '{value.name}', which nothing computes")


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
