"""ONNX Runtime, the one module that imports it for running: sessions, its two wheels, CUDA, bfloat16 arrays.

numpy knows no bfloat16, and neither do ONNX Runtime's Python bindings: `InferenceSession.run` takes no bfloat16 array
and `OrtValue.numpy()` returns none. Here such an array goes in as an `OrtValue` made from its bits (`to_ort`) and comes
out by reading the bits at the value's address (`from_ort`); outside it is an array of `ml_dtypes.bfloat16`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import io
import logging
import os
import re
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import EnvironmentProblem, InputError
from amp_transpiler.runtime import places
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, Place

__all__ = [
    "ORT_ERRORS",
    "cuda_problem",
    "element_type",
    "error_text",
    "from_ort",
    "is_about_feeds",
    "is_extension",
    "nodes_on_cpu",
    "open_session",
    "refuse_two_wheels",
    "run_session",
    "to_ort",
]

_logger = logging.getLogger(__name__)

_CPU = CPUPlace()
_NO_OPTIONS: Mapping[str, str] = types.MappingProxyType({})
_FATAL = 4  # ONNX Runtime's log severity above errors: what goes wrong is raised, nothing needs printing as well
# In 1.31 it loses the input of `Mul(x, Div(1, y))` where x comes from an Identity that goes away: no session then.
_BROKEN_OPTIMIZERS = ["DivMulFusion"]

_exceptions = onnxruntime.capi.onnxruntime_pybind11_state
ORT_ERRORS: tuple[type[Exception], ...] = (
    _exceptions.EPFail,
    _exceptions.EngineError,
    _exceptions.Fail,
    _exceptions.InvalidArgument,
    _exceptions.InvalidGraph,
    _exceptions.InvalidProtobuf,
    _exceptions.NoModel,
    _exceptions.NoSuchFile,
    _exceptions.NotImplemented,
    _exceptions.RuntimeException,
)
"""What ONNX Runtime raises when it refuses a model or a run; `NotImplemented` means that a kernel is missing."""

# A provider that cannot start raises Python's own errors, too.
_PROVIDER_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError, ValueError)

# ONNX Runtime's names of element types, as `tensor(float)` has them, where they are not ONNX's.
_ELEMENT_TYPES = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}

# The smallest model there is, to find out whether the CUDA provider can be had at all.
_PROBE = '<ir_version: 8, opset_import: ["": 13]> probe (float[1] x) => (float[1] y) { y = Relu(x) }'


def open_session(
    model: bytes | str | os.PathLike[str],
    place: Place = _CPU,
    *,
    optimize: bool = True,
    fuse: bool = True,
    threads: int | None = None,
    external_folder: str | os.PathLike[str] | None = None,
    record_assignment: bool = False,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> onnxruntime.InferenceSession:
    """Return a session of `model` that prints nothing.

    Args:
        model: a serialised model, or the path of one.
        place: where it runs; on CUDA, nodes without a CUDA kernel run on the CPU.
        optimize: whether ONNX Runtime may rewrite the graph.
        fuse: whether it may also fuse operators, which can swallow casts.
        threads: threads inside an operator; None leaves the choice to ONNX Runtime.
        external_folder: where a serialised model's external data lies.
        record_assignment: remember the provider of each node, for `nodes_on_cpu`.
        options: further session configuration entries.

    Raises:
        EnvironmentProblem: two ONNX Runtime wheels are installed, or CUDA was asked for and cannot be had.
        ORT_ERRORS: ONNX Runtime refuses the model; `error_text` makes one line of such an error.
    """
    refuse_two_wheels()
    if isinstance(place, CUDAPlace):
        problem = cuda_problem(place.device_id)
        if problem is not None:
            raise EnvironmentProblem(f"cannot run on {place}: {problem}")
    settings = _settings(optimize=optimize, fuse=fuse, threads=threads)
    if external_folder is not None:
        settings.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", os.fspath(external_folder)
        )
    if record_assignment:
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in options.items():
        settings.add_session_config_entry(key, value)
    return _create(model if isinstance(model, bytes) else os.fspath(model), settings, place)


def _settings(*, optimize: bool, threads: int | None, fuse: bool = True) -> onnxruntime.SessionOptions:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _FATAL
    if not optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif not fuse:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if threads is not None:
        settings.intra_op_num_threads = threads
    return settings


def _create(model: bytes | str, settings: onnxruntime.SessionOptions, place: Place) -> onnxruntime.InferenceSession:
    # The process-wide logger reports a provider's failure to load, in red, besides the session's own.
    onnxruntime.set_default_logger_severity(_FATAL)
    providers: list[Any] = ["CPUExecutionProvider"]
    if isinstance(place, CUDAPlace):
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": str(place.device_id)}))
    # Falling back to other providers would be done with print() and behind the caller's back.
    return onnxruntime.InferenceSession(
        model, settings, providers=providers, enable_fallback=0, disabled_optimizers=_BROKEN_OPTIMIZERS
    )


@functools.cache
def refuse_two_wheels() -> None:
    """Raise EnvironmentProblem if `onnxruntime` and `onnxruntime-gpu` are both installed.

    They install the same module over each other, so that what is loaded is a mixture of the two.
    """
    found = []
    for wheel in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{wheel} {importlib.metadata.version(wheel)}")
    if len(found) > 1:
        raise EnvironmentProblem(
            f"{found[0]} and {found[1]} are both installed and overwrite each other: run "
            "`pip uninstall -y onnxruntime onnxruntime-gpu`, then install one of them "
            "(`pip install onnxruntime-gpu`, or `onnxruntime` where there is no GPU wheel)"
        )


@functools.cache
def cuda_problem(device_id: int = 0) -> str | None:
    """Return why ONNX Runtime cannot run on CUDA device `device_id`, with the remedy, or None if it can."""
    count = places.driver_device_count()
    if count == 0:
        return "no NVIDIA device answers on this machine (no driver, or no visible device); use CPUPlace()"
    if device_id >= count:
        return f"there is no CUDA device {device_id}: {count} visible, the first is 0"
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return (
            "the installed onnxruntime has no CUDA provider: run `pip uninstall -y onnxruntime`, "
            "then `pip install onnxruntime-gpu`"
        )
    _preload_cuda_libraries()
    missing = None if _cudnn_loads() else "cuDNN"
    if not _provider_loads(device_id):
        missing = "CUDA" if missing is None else "CUDA and cuDNN"
    if missing is not None:
        return (
            f"an NVIDIA device answers, but ONNX Runtime cannot load the {missing} libraries: "
            "`pip install 'amp_transpiler[cuda]'` brings them"
        )
    return None


@functools.cache
def _preload_cuda_libraries() -> None:
    """Load the CUDA and cuDNN libraries that pip installed, so that the provider finds them."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():  # it prints whatever it does not find
        warnings.simplefilter("ignore")
        onnxruntime.preload_dlls()
    if said.getvalue():
        _logger.debug("onnxruntime.preload_dlls: %s", said.getvalue().strip())


def _cudnn_loads() -> bool:
    """Whether cuDNN can be loaded: the provider itself only looks for it when a node first needs it."""
    try:
        ctypes.CDLL("cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9")
    except OSError:
        return False
    return True


def _provider_loads(device_id: int) -> bool:
    model = ir.to_proto(ir.from_onnx_text(_PROBE)).SerializeToString()
    try:
        session = _create(model, _settings(optimize=False, threads=1), CUDAPlace(device_id))
    except _PROVIDER_ERRORS as error:
        _logger.debug("the CUDA provider refuses device %d: %s", device_id, error)
        return False
    return "CUDAExecutionProvider" in session.get_providers()


def nodes_on_cpu(session: onnxruntime.InferenceSession) -> tuple[str, ...]:
    """Return `OP NAME` of the nodes that run on the CPU, of a session opened with `record_assignment=True`."""
    return tuple(
        f"{node.op_type} {node.name}".rstrip()
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == "CPUExecutionProvider"
        for node in part.get_nodes()
    )


def error_text(error: BaseException, limit: int = 300) -> str:
    """Return the message of an ONNX Runtime error as one line, without its source paths, at most `limit` characters."""
    text = re.sub(r"\S*/onnxruntime/core/\S+ .*?\)( const)? ", "", str(error))
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(text.split()))
    text = text or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def element_type(ort_type: str) -> ir.DataType | None:
    """Return the element type that `tensor(float)` and its like name, or None for what is no tensor."""
    found = re.fullmatch(r"tensor\((\w+)\)", ort_type)
    if found is None:
        return None
    return _ELEMENT_TYPES.get(found[1]) or ir.DataType[found[1].upper()]


def is_extension(dtype: np.dtype) -> bool:
    """Whether numpy has the element type from `ml_dtypes`, as with bfloat16, float8 and 4-bit integers."""
    return dtype.isbuiltin == 2


def is_about_feeds(error: BaseException) -> bool:
    """Whether an error of a run says that an input has the wrong rank or a wrong dimension."""
    signs = ("Invalid rank for input", "Got invalid dimensions for input", "Unexpected input data type")
    return any(sign in str(error) for sign in signs)


def to_ort(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a value in main memory that holds `array`, be it of a type of `ml_dtypes` such as bfloat16.

    The value shares the array's memory where it can: keep the array unchanged while the value is in use.
    """
    array = np.asarray(array, order="C")
    if not is_extension(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth < 8:
        # The shape is taken from the array handed over, the bytes from its beginning, where they are packed.
        packed = np.frombuffer(ir.Tensor(array).tobytes(), np.uint8)
        bits = np.zeros(array.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    else:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype.value)


def from_ort(value: onnxruntime.OrtValue) -> np.ndarray | None:
    """Return the array that a tensor value holds, copied to main memory; None for an empty optional.

    Raises:
        InputError: a bfloat16 tensor on a device, which has to be bound to main memory instead, or no tensor.
    """
    if not value.has_value():
        return None
    if not value.is_tensor():
        raise InputError(f"a value of type {value.data_type()} cannot be read as an array")
    dtype = ir.DataType(value.element_type())
    if not is_extension(dtype.numpy()):
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":
        raise InputError(f"a {dtype} value on {value.device_name()} cannot be read: bind that output to the CPU")
    shape = tuple(value.shape())
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if 0 not in shape else b""
    # ONNX's own message form knows how each of these types is laid out.
    return onnx.numpy_helper.to_array(onnx.TensorProto(data_type=dtype.value, dims=shape, raw_data=bits))


def run_session(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None
) -> list[Any]:
    """Run once, through main memory.

    Args:
        session: an open session.
        feeds: input name -> array, or list of arrays for a sequence. bfloat16 arrays are `ml_dtypes.bfloat16`.
        fetch: outputs wanted; None for all, in the model's order.

    Returns:
        One array an output, in the order of `fetch`; a list for a sequence, None for an empty optional.

    Raises:
        ORT_ERRORS: the run failed.
        InputError: sequences of bfloat16 are asked for, which ONNX Runtime's Python bindings cannot pass on.
    """
    types_of = {output.name: output.type for output in session.get_outputs()}
    names = list(types_of) if fetch is None else list(fetch)
    given = {name: to_ort(value) if _has_extension(value) else value for name, value in feeds.items()}
    by_value = [name for name in names if _names_extension(types_of[name])]
    if not by_value:
        return list(session.run(names, given))
    _refuse_unbindable(given, {name: types_of[name] for name in by_value})
    values = {name: v if isinstance(v, onnxruntime.OrtValue) else to_ort(np.asarray(v)) for name, v in given.items()}
    found = dict(zip(by_value, map(from_ort, session.run_with_ort_values(by_value, values)), strict=True))
    others = [name for name in names if name not in found]
    if others:  # a second run, since only this call reads sequences and only the one above bfloat16
        found.update(zip(others, session.run(others, given), strict=True))
    return [found[name] for name in names]


def _has_extension(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_extension(value.dtype)


def _names_extension(ort_type: str) -> bool:
    inner = re.search(r"tensor\(\w+\)", ort_type)
    dtype = element_type(inner[0]) if inner else None
    return dtype is not None and is_extension(dtype.numpy())


def _refuse_unbindable(feeds: Mapping[str, Any], outputs: Mapping[str, str]) -> None:
    for name, kind in outputs.items():
        if element_type(kind) is None:
            raise InputError(f"output {name!r} is {kind}: ONNX Runtime's Python bindings cannot read it")
    for name, value in feeds.items():
        if not isinstance(value, onnxruntime.OrtValue) and (
            isinstance(value, list) or value is None or np.asarray(value).dtype.kind in "OUS"
        ):
            raise InputError(
                f"input {name!r} is a sequence, optional or string and output {next(iter(outputs))!r} is "
                f"{next(iter(outputs.values()))}: ONNX Runtime's Python bindings cannot do both in one run"
            )


def to_host(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the array that a tensor value holds, wherever it lives, copied to main memory."""
    dtype = ir.DataType(value.element_type())
    if value.device_name() != "cpu" and is_extension(dtype.numpy()):
        value = _copied_to_host(value, dtype)
    found = from_ort(value)
    if found is None:
        raise InputError("an empty optional has no array")
    return found


def _copied_to_host(value: onnxruntime.OrtValue, dtype: ir.DataType) -> onnxruntime.OrtValue:
    """Copy through a session: numpy, by way of which ONNX Runtime's bindings copy, does not know the type."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> copy ({dtype.name.lower()}[...] x) => ({dtype.name.lower()}[...] y)'
        " { y = Identity(x) }"
    )
    session = _create(ir.to_proto(model).SerializeToString(), _settings(optimize=False, threads=1), CUDAPlace())
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]
