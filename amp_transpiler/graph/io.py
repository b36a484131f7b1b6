"""Loading programs, and saving them atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError, OutputError
from amp_transpiler.graph.external_data import check_external_data, external_files
from amp_transpiler.graph.garbage import collection_paused
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.proto import from_proto, has_opaque_types, proto_graphs, to_proto
from amp_transpiler.graph.tensors import initializer_tensors, stored_tensors
from amp_transpiler.graph.walk import bodies, scopes

__all__ = [
    "Staged",
    "check_destination",
    "load",
    "save",
    "sort_if_needed",
    "stage",
    "tensor_bytes",
]

logger = logging.getLogger(__name__)

_WRITERS = 2  # threads that convert and write weights; each holds one tensor in memory
_INLINE_LIMIT = 1_900_000_000  # bytes of weights; a protobuf message ends at 2 GiB, and the graph needs some of it


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


# ---- saving ----


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """A model written to a folder beside its destination.

    Attributes:
        path: the written file; ONNX Runtime can load it from here.
        destination: the path that `commit` moves it to.
    """

    path: pathlib.Path
    destination: pathlib.Path

    def commit(self) -> None:
        """Move the files to the destination, replacing old ones: weights first, then the model."""
        for file in sorted(self.path.parent.iterdir(), key=lambda file: file == self.path):
            file.replace(self.destination.parent / file.name)

    @property
    def file_bytes(self) -> int:
        """Size of the model and its external data."""
        return sum(file.stat().st_size for file in self.path.parent.iterdir())


def check_destination(destination: pathlib.Path, program: Program) -> None:
    """Raise OutputError if `destination` is not writable, or if writing there would destroy the source."""
    source = program.source
    beside = destination.with_name(f"{destination.name}.data")
    if beside.exists() and any(file.samefile(beside) for file in external_files(program.model) if file.exists()):
        raise OutputError(
            f"{destination}: its weights would go to {beside.name}, which holds the source's; choose another output"
        )
    if source is not None and destination.exists() and source.exists() and destination.samefile(source):
        raise OutputError(f"{destination}: output and input are the same file; the source is never overwritten")
    if destination.exists() and not destination.is_file():
        raise OutputError(f"{destination}: exists and is not a regular file; choose another output")
    folder = destination.parent
    if not folder.is_dir():
        raise OutputError(f"{destination}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{destination}: the folder {folder} is not writable; choose another with -o")


@contextlib.contextmanager
def stage(
    program: Program,
    destination: str | os.PathLike[str],
    external: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Staged]:
    """Write `program` into a hidden folder beside `destination`; `Staged.commit` moves it there.

    Args:
        program: the program to write.
        destination: the final path.
        external: write weights to a file of their own, `DESTINATION.data`; None: if the source has external weights,
            or if the model exceeds protobuf's limit.
        progress: called with the number of tensors written, and of all tensors.

    Raises:
        OutputError: the destination is unusable, or the disk is full. Nothing is left behind.
    """
    target = pathlib.Path(destination)
    check_destination(target, program)
    total = sum(tensor_bytes(program.model))
    if external is None:
        external = total > _INLINE_LIMIT or _has_external_data(program.model)
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OutputError(f"{target}: cannot write there: {error.strerror}") from error
    try:
        staged = Staged(folder / target.name, target)
        _write(program.model, staged.path, external, progress)
        yield staged
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO):
            raise OutputError(f"{target}: cannot be written: {error.strerror}; nothing was left behind") from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(
    program: Program | ir.Model | onnx.ModelProto, path: str | os.PathLike[str], external: bool | None = None
) -> None:
    """Write `program` to `path`, atomically: after a failure, an old file is still there.

    Args:
        program: the program to write; beyond 2 GB, weights go to a file of their own.
        path: the .onnx file; replaced if present.
        external: see `stage`.

    Raises:
        OutputError: the destination is unusable, or the disk is full.
    """
    with stage(load(program), path, external) as staged:
        staged.commit()


@collection_paused()
def _write(model: ir.Model, path: pathlib.Path, external: bool, progress: Callable[[int, int], None] | None) -> None:
    def report(_: Any, info: Any) -> None:
        if progress is not None:
            progress(info.index, info.total)

    if has_opaque_types(model) and not external:
        onnx.save_model(to_proto(model), path)
        return
    if external:
        ir.save(model, path, external_data=f"{path.name}.data", callback=report, max_workers=_WRITERS)
    else:
        ir.save(model, path)


def _has_external_data(model: ir.Model) -> bool:
    return any(
        isinstance(tensor, ir.ExternalTensor) or getattr(tensor, "streamed", False)
        for tensor in initializer_tensors(model)
    )


def tensor_bytes(model: ir.Model) -> Iterator[int]:
    """Yield the size in bytes of every initializer and tensor attribute of the model."""
    for tensor in stored_tensors(model):
        yield tensor.nbytes


# ---- order of nodes ----


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
