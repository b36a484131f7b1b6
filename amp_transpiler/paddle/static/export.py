"""Programs as ONNX files: for prediction, or a whole training step for plain ONNX Runtime."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff import expand_gradients
from amp_transpiler.errors import InputError, OptionError, OutputError, VerificationError
from amp_transpiler.files.loading import load as load_model
from amp_transpiler.files.saving import Staged, stage
from amp_transpiler.graph.checker import checker_fault
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.graph.training_step import UPDATES_KEY
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import scopes
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.static.tensor_file import write_tensors
from amp_transpiler.passes.bake_casts import BakeCasts
from amp_transpiler.passes.fold_batch_norm import FoldBatchNorm
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.skip_identities import SkipIdentities
from amp_transpiler.program.assemble import Assembled, assemble, with_values
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.lowering import lower
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.verification.structure import check_load

__all__ = ["FETCHES_KEY", "UPDATES_KEY", "load_inference_model", "save_inference_model", "save_training_program"]

logger = logging.getLogger(__name__)

FETCHES_KEY = "amp_transpiler.fetches"  # JSON in the metadata, too: fetched name -> output that carries it


def save_inference_model(
    path_prefix: str | os.PathLike[str],
    feed_vars: Variable | str | Sequence[Variable | str],
    fetch_vars: Variable | str | Sequence[Variable | str],
    executor: object = None,
    program: Program | None = None,
    scope: Scope | None = None,
    **options: Any,
) -> None:
    """Write the part of a program that predicts `fetch_vars`, weights inside, as an ONNX file, and check it.

    Parameters that are only read through a cast are stored cast. A BatchNormalization of float16 or bfloat16 data with
    float32 parameters has no kernel, so it is folded into the layer before it where that is possible.

    Args:
        path_prefix: the file; `.onnx` is added unless it ends so. A missing folder is created.
        feed_vars: the inputs or their names, in the file's order.
        fetch_vars: the outputs, in the file's order.
        executor: Paddle's, no effect; a scope given here is taken as `scope`.
        program: the program; that of `fetch_vars` unless given.
        scope: where values live; the global scope unless given.
        options: Paddle's `clip_extra`, `legacy_format` and `skip_forward_backward`, no effect.

    Raises:
        InputError: a fetch needs an input that is not in `feed_vars`, is not part of the inference program, or a
            value is not in the scope.
        OptionError: an option is unknown.
        OutputError: the file cannot be written.
        VerificationError: ONNX's checker or ONNX Runtime rejects the result. Nothing is written.
    """
    _check_options("save_inference_model", options, ("clip_extra", "legacy_format", "skip_forward_backward"))
    scope = executor if isinstance(executor, Scope) else scope
    feeds, fetches = _variables(feed_vars), _variables(fetch_vars)
    if not fetches:
        raise InputError("save_inference_model: give at least one variable to fetch")
    source = program if program is not None else _program_of(fetches)
    inference = source.clone(for_test=True)
    assembled = assemble(inference, [inference.name_of(variable) for variable in fetches], updates=False)
    _order_inputs(assembled, [inference.name_of(variable) for variable in feeds])
    with_values(assembled.model, inference, global_scope() if scope is None else scope)
    PassManager([SkipIdentities(keep=False), BakeCasts(), FoldBatchNorm(_has_mixed_types)])(assembled.model)
    model = lower(assembled).model
    with _checked(model, _onnx_path(path_prefix)) as staged:
        staged.commit()


def _has_mixed_types(norm: ir.Node) -> bool:
    data, scale = norm.inputs[:2]
    return data is not None and scale is not None and data.dtype != scale.dtype


def load_inference_model(
    path_prefix: str | os.PathLike[str],
    executor: object = None,  # noqa: ARG001  # Paddle's; the file holds the values
    **options: Any,
) -> list[Any]:
    """Return `[program, feed names, fetch variables]` of an ONNX file, for `Executor.run`.

    Args:
        path_prefix: the file; `.onnx` is added unless it ends so.
        executor: Paddle's, no effect.
        options: Paddle's `model_filename`, `params_filename` (no effect: one file holds both) and others, which must be
            None.

    Raises:
        ModelError: there is no such file, or it is not an ONNX model.
        OptionError: an option is unknown.
    """
    _check_options("load_inference_model", options, ("model_filename", "params_filename", "load_params_on_gpu"))
    program = load_model(_onnx_path(path_prefix))
    propagate_types(program.model)
    graph = program.model.graph
    feeds = [str(value.name) for value in graph.inputs if not value.is_initializer()]
    return [program, feeds, [program.var(str(value.name)) for value in graph.outputs]]


def save_training_program(
    program: Program,
    path: str | os.PathLike[str],
    feed: Mapping[str, Any] | None = None,
    fetch_list: Sequence[Variable | str] | None = None,
    scope: Scope | None = None,
) -> None:
    """Write a whole training step as one ONNX file, and the initial state in a file beside it.

    The file has plain operators only. Its inputs are the feeds and the persistable values. Its outputs are the fetched
    values and the updates of persistable ones. JSON in its metadata names them (`amp_transpiler.updates`: input ->
    output; `amp_transpiler.fetches`: name -> output). `STEM.state.safetensors` holds the inputs' values as the scope
    has them.

    Args:
        program: the program, its backward pass and optimizer in it.
        path: the file; `.onnx` is added unless it ends so. A missing folder is created.
        feed: input name -> array or shape that the step is specialised to; sizes stay free otherwise.
        fetch_list: values to fetch; the program's losses and outputs unless given.
        scope: where values live; the global scope unless given.

    Raises:
        InputError: something fetched does not exist, a value is not in the scope, or a shape does not fit.
        ModelError: gradients need sizes that are free; `feed` gives them.
        OutputError: the file cannot be written.
        VerificationError: ONNX's checker or ONNX Runtime rejects the result. Nothing is written.
    """
    if not program.updates:
        raise InputError(f"{program!r} updates nothing: minimize a loss first, or use save_inference_model")
    scope = global_scope() if scope is None else scope
    fetch = [program.name_of(item) for item in fetch_list or program.outputs]
    assembled = assemble(program, fetch)
    _specialise(assembled.model, {name: _shape(array_or_shape) for name, array_or_shape in (feed or {}).items()})
    expand_gradients(assembled.model)
    assembled = lower(assembled, by_rows=False)  # in ONNX's own operators
    if missing := [name for name in assembled.state if name not in scope]:
        raise InputError(f"the scope has no value for {', '.join(missing)}: run the startup program first")
    updates = {name: output for name, output in assembled.updates.items() if name in assembled.state}
    assembled.model.metadata_props[UPDATES_KEY] = json.dumps(updates)
    assembled.model.metadata_props[FETCHES_KEY] = json.dumps(dict(assembled.fetches))
    target = _onnx_path(path)
    with _checked(assembled.model, target) as staged:
        state = _as_declared(assembled, scope)
        write_tensors(
            target.with_suffix(".state.safetensors"), state, state, {"format": "amp_transpiler.training_state"}
        )
        staged.commit()


def _as_declared(assembled: Assembled, scope: Scope) -> dict[str, np.ndarray]:
    """Return the state in the element types of the model's inputs."""
    inputs = {str(value.name): value for value in assembled.model.graph.inputs}
    dtypes = {name: inputs[name].dtype or ir.DataType.FLOAT for name in assembled.state}
    return {name: scope[name].astype(dtype.numpy(), copy=False) for name, dtype in dtypes.items()}


# ---- parts ----


def _variables(variables: Variable | str | Sequence[Variable | str]) -> list[Variable | str]:
    return [variables] if isinstance(variables, (str, Variable)) else list(variables)


def _program_of(fetches: Sequence[Variable | str]) -> Program:
    return next((item.program for item in fetches if isinstance(item, Variable)), None) or default_main_program()


def _check_options(function: str, options: Mapping[str, Any], supported: Sequence[str]) -> None:
    if unknown := [name for name in options if name not in supported]:
        raise OptionError(f"{function}: unknown option '{unknown[0]}'{did_you_mean(unknown[0], supported)}")


def _onnx_path(prefix: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(prefix)
    return path if path.suffix == ".onnx" else path.with_name(f"{path.name}.onnx")


def _order_inputs(assembled: Assembled, feeds: Sequence[str]) -> None:
    graph = assembled.model.graph
    if missing := [name for name in assembled.feeds if name not in feeds]:
        raise InputError(
            f"what is fetched also depends on {', '.join(missing)}: add it to feed_vars, or fetch what comes before "
            "the labels"
        )
    if unused := [name for name in feeds if name not in assembled.feeds]:
        logger.warning("the inference model does not read %s: left out", ", ".join(unused))
    rank = {name: index for index, name in enumerate(feeds)}
    ordered = sorted(graph.inputs, key=lambda value: rank.get(str(value.name), len(rank)))
    graph.inputs.clear()
    graph.inputs.extend(ordered)


def _shape(array_or_shape: Any) -> tuple[int, ...]:
    if isinstance(array_or_shape, np.ndarray):
        return tuple(array_or_shape.shape)
    if not all(isinstance(size, (int, np.integer)) for size in array_or_shape):
        raise InputError(f"feed takes arrays and shapes, got {array_or_shape!r}")
    return tuple(int(size) for size in array_or_shape)


def _specialise(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Set the shapes of inputs, and replace the named dimensions that they determine throughout the model."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(f"the program has no input '{name}': its inputs are {', '.join(inputs)}")
        declared = inputs[name].shape
        if declared is not None and len(declared) != len(shape):
            raise InputError(f"input '{name}': got shape {list(shape)}, expected {declared}")
        for dim, size in zip(declared or (), shape, strict=False):
            label = None if isinstance(dim, int) else dim.value
            if (isinstance(dim, int) and dim != size) or (label and sizes.setdefault(label, size) != size):
                raise InputError(
                    f"input '{name}': got shape {list(shape)}, expected {declared}, {dim} elsewhere otherwise"
                )
        inputs[name].shape = ir.Shape(shape)
    for scope in scopes(model):
        for value in (*scope.graph.inputs, *(v for node in scope.graph for v in node.outputs)):
            if value.shape is not None:
                value.shape = ir.Shape([_size(dim, sizes) for dim in value.shape])


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return dim.value if dim.value is None else sizes.get(dim.value, dim.value)


@contextlib.contextmanager
def _checked(model: ir.Model, target: pathlib.Path) -> Iterator[Staged]:
    """Write a model beside its destination and check it there; the caller moves it into place."""
    propagate_types(model)
    verify(model, f"exporting {target.name}")
    if fault := checker_fault(model):
        raise VerificationError(f"{target}: the exported model fails onnx.checker: {fault}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{target}: its folder cannot be made: {error.strerror}") from error
    program = Program(model)
    with stage(program, target) as staged:
        loaded = check_load(staged.path, program)
        if loaded.outcome == "refused":
            raise VerificationError(f"{target}: ONNX Runtime refuses the exported model: {loaded.detail}")
        if loaded.outcome == "structural":
            logger.warning("%s is checked structurally only: %s", target, loaded.detail)
        yield staged


check_arguments(globals(), __all__)
