"""`serialize_program` and its relatives turn programs and their values into bytes and back."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from amp_transpiler.errors import InputError
from amp_transpiler.files.durable import write_file
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.graph.proto import from_proto, to_proto
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.static.io import program_state, set_values
from amp_transpiler.paddle.static.stored import open_stored
from amp_transpiler.paddle.static.tensor_file import SUFFIX, write_tensors
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.scope import Scope

__all__ = [
    "deserialize_persistables",
    "deserialize_program",
    "load_from_file",
    "normalize_program",
    "save_to_file",
    "serialize_persistables",
    "serialize_program",
]

_KEY = "amp_transpiler.persistables"  # in a model's metadata: kinds of persistable values by name, as JSON


def normalize_program(
    program: Program,
    feed_vars: Variable | str | Sequence[Variable | str],
    fetch_vars: Variable | str | Sequence[Variable | str],
    **_: Any,
) -> Program:
    """Return the part of a program that predicts `fetch_vars`; its values stay in the scope.

    Args:
        program: the program; it is not changed.
        feed_vars: its inputs.
        fetch_vars: its outputs.

    Raises:
        InputError: what is fetched needs an input that is not in `feed_vars`, or is no variable of the program.
    """
    inference = program.clone(for_test=True)
    feeds, fetches = (_names(inference, variables) for variables in (feed_vars, fetch_vars))
    assembled = assemble(inference, fetches, updates=False)
    if missing := [name for name in assembled.feeds if name not in feeds]:
        raise InputError(f"what is fetched also depends on {', '.join(missing)}: add it to feed_vars")
    normalized = Program(assembled.model)
    normalized.is_built = True
    normalized.persistables = {name: inference.persistables[name] for name in assembled.state}
    normalized.outputs = fetches
    return normalized


def serialize_program(
    feed_vars: Variable | str | Sequence[Variable | str],
    fetch_vars: Variable | str | Sequence[Variable | str],
    program: Program | None = None,
    **options: Any,
) -> bytes:
    """Return the part of a program that predicts `fetch_vars` as bytes of an ONNX model, without its values.

    Args:
        feed_vars: its inputs.
        fetch_vars: its outputs.
        program: the program; that of the variables unless given.
        options: Paddle's, no effect.

    Raises:
        InputError: as `normalize_program`.
    """
    normalized = normalize_program(_program(fetch_vars, program), feed_vars, fetch_vars, **options)
    proto = to_proto(normalized.model)
    kinds = {name: persistable.kind for name, persistable in normalized.persistables.items()}
    proto.metadata_props.add(key=_KEY, value=json.dumps(kinds))
    return bytes(proto.SerializeToString())


def deserialize_program(data: bytes) -> Program:
    """Return the program whose bytes `serialize_program` returned.

    Raises:
        InputError: they are others.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        kinds = json.loads({entry.key: entry.value for entry in proto.metadata_props}[_KEY])
    except (DecodeError, KeyError, ValueError, TypeError) as error:
        raise InputError("deserialize_program: these are no bytes of serialize_program") from error
    program = Program(from_proto(proto))
    program.is_built = True
    program.persistables = {name: Persistable(name, kind) for name, kind in kinds.items()}
    program.outputs = [str(value.name) for value in program.model.graph.outputs]
    return program


def serialize_persistables(
    feed_vars: Variable | str | Sequence[Variable | str],
    fetch_vars: Variable | str | Sequence[Variable | str],
    executor: object = None,
    program: Program | None = None,
    scope: Scope | None = None,
    **options: Any,
) -> bytes:
    """Return the values that are read to predict `fetch_vars`, as bytes of a safetensors file.

    Args:
        feed_vars: its inputs.
        fetch_vars: its outputs.
        executor: Paddle's, no effect.
        program: the program; that of the variables unless given.
        scope: where the values live; the global scope unless given.
        options: Paddle's, no effect.

    Raises:
        InputError: as `normalize_program`, or the scope lacks a value.
    """
    del executor
    normalized = normalize_program(_program(fetch_vars, program), feed_vars, fetch_vars, **options)
    arrays = program_state(normalized, "all", scope)
    with temporary_folder() as folder:
        write_tensors(folder / f"values{SUFFIX}", arrays, arrays, {})
        return (folder / f"values{SUFFIX}").read_bytes()


def deserialize_persistables(
    program: Program, data: bytes, executor: object = None, scope: Scope | None = None
) -> None:
    """Set the values of a program from the bytes that `serialize_persistables` returned.

    Args:
        program: the program, such as `deserialize_program` returns.
        data: the bytes.
        executor: Paddle's, no effect.
        scope: where they go; the global scope unless given.

    Raises:
        InputError: these are other bytes, or values that do not fit the program.
    """
    del executor
    with temporary_folder() as folder:
        (folder / f"values{SUFFIX}").write_bytes(data)
        stored = open_stored(folder / f"values{SUFFIX}")
        set_values(program, dict(stored.read(stored.found)), scope, "deserialize_persistables")


def save_to_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes to a file, all or nothing.

    Raises:
        InputError: `content` is not bytes.
        OutputError: the file cannot be written.
    """
    if not isinstance(content, bytes):
        raise InputError(f"save_to_file: got {type(content).__name__}, expected bytes")
    write_file(path, content)


def load_from_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _program(fetch_vars: Variable | str | Sequence[Variable | str], program: Program | None) -> Program:
    if program is not None:
        return program
    items = [fetch_vars] if isinstance(fetch_vars, (str, Variable)) else fetch_vars
    return next((item.program for item in items if isinstance(item, Variable)), None) or default_main_program()


def _names(program: Program, variables: Variable | str | Sequence[Variable | str]) -> list[str]:
    return [program.name_of(item) for item in ([variables] if isinstance(variables, (str, Variable)) else variables)]
