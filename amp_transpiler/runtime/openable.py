"""A program in a form that ONNX Runtime opens: a path, or a serialised message."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import shutil
import tempfile
from typing import TypeAlias

import onnx
import onnx_ir as ir

from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save
from amp_transpiler.graph.large_scatters import large_scatters
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.tensors import initializer_tensors, tensor_bytes
from amp_transpiler.graph.vector_products import vector_products
from amp_transpiler.program.assemble import written_model
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.ort import SessionSettings
from amp_transpiler.runtime.places import Place

__all__ = ["AnyProgram", "Openable", "guarded", "openable"]

logger = logging.getLogger(__name__)

AnyProgram: TypeAlias = Program | str | os.PathLike[str] | onnx.ModelProto | ir.Model

_INLINE_LIMIT = 1 << 30  # bytes of weights in a message; protobuf's limit is 2 GB


@dataclasses.dataclass(frozen=True, slots=True)
class Openable:
    """A model to open, and how.

    Attributes:
        model: a serialised model, or the absolute path of one.
        settings: how to open it.
        emulated: it is the float32 program that rounds like the low one.
        folder: a temporary folder that holds the model. ONNX Runtime may keep the weights memory-mapped, so it must
            live as long as the session; whoever opens the session removes it.
    """

    model: bytes | str
    settings: SessionSettings
    emulated: bool = False
    folder: pathlib.Path | None = None


def openable(program: AnyProgram, place: Place, *, emulate: bool = True) -> Openable:
    """Return `program` in a form to open on `place`.

    Args:
        program: the program; a path is opened where it is, unless it must be emulated. Never changed.
        place: where it will run.
        emulate: where the place emulates, turn a program with low values into its emulation.

    Raises:
        InputError: the program has no outputs, or its `outputs` name none of its values.
        ModelError: the model cannot be read.
    """
    emulated, guards = False, SessionSettings()
    if (emulate and place.emulates_low) or not isinstance(program, (str, os.PathLike)):
        loaded = load(program)
        guards = guarded(SessionSettings(), loaded, place)
        if emulate and place.emulates_low and has_low_values(loaded):
            from amp_transpiler.passes.emulate import emulate as emulate_program

            program, emulated = emulate_program(loaded), True
    # Emulation rounds by casts; a fused LayerNormalization would drop some of them.
    settings = dataclasses.replace(guards, fuse=not emulated, record_assignment=not place.in_main_memory)
    if isinstance(program, (str, os.PathLike)):
        return Openable(os.fspath(pathlib.Path(program).absolute()), settings, emulated)
    program = load(program)
    model = written_model(program)
    if place.emulates_low:
        from amp_transpiler.passes.lower_to_kernels import lowered_to_kernels

        if (lowered := lowered_to_kernels(model)) is not model:
            model, program = lowered, Program(lowered)
    files = [tensor for tensor in initializer_tensors(model) if isinstance(tensor, ir.ExternalTensor)]
    folders = {os.fspath(pathlib.Path(tensor.base_dir).absolute()) for tensor in files}
    inline = sum(tensor_bytes(model)) - sum(tensor.nbytes for tensor in files)
    if inline <= _INLINE_LIMIT and len(folders) <= 1:
        message = to_proto(model).SerializeToString()  # external data stays where it is
        folder_of_weights = folders.pop() if folders else None
        return Openable(message, dataclasses.replace(settings, external_folder=folder_of_weights), emulated)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="amp-transpiler-"))
    try:
        save(program, folder / "model.onnx", external=True, durable=False)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Openable(os.fspath(folder / "model.onnx"), settings, emulated, folder)


def guarded(settings: SessionSettings, program: Program, place: Place) -> SessionSettings:
    """Return settings under which ONNX Runtime computes a program right (docs/onnxruntime_faults.md)."""
    if vector_products(program.model, unknown=True):
        settings = dataclasses.replace(settings, fuse_transposes=False)
    racing = large_scatters(program.model, unknown=True) if place.in_main_memory else []
    if racing:
        logger.info("one thread for each operator: several would lose sums of ScatterND '%s'", racing[0].name)
        settings = dataclasses.replace(settings, threads=1)
    return settings
