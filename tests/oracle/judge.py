"""A written file against the float32 model it was made from: valid, opened, and how far its values are from fp32."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import dataclasses
import functools
import math
import multiprocessing
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.oracle.counting import count_casts, low_nodes
from tests.oracle.formats import FLOATS, rounded
from tests.oracle.interpreter import CannotEvaluate, Interpreter

_FATAL = 4  # every error is raised, so that printing it too is noise
_ANY_OPSET = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # 0: ONNX Runtime reads opsets that it does not know in full
# How ONNX Runtime says that its CPU provider lacks a kernel, in a model that it takes for valid.
_LACKS_A_KERNEL = ("NOT_IMPLEMENTED", "Could not find an implementation", "is not a registered function/op")


class CannotRun(Exception):
    """ONNX Runtime does not run the original; the message says why."""


@dataclasses.dataclass(frozen=True)
class Values:
    """How far the outputs of a file are from those of the original.

    Attributes:
        errors: output -> relative norm of the difference; infinite where a value is not finite but fp32 is, or where
            the structure differs. Outputs without a float are left out.
        differing: share of the integers, truth values and strings that differ.
        elements: the number of floats in all outputs.
        integers: the number of integers, truth values and strings.
    """

    errors: dict[str, float]
    differing: float = 0.0
    elements: int = 0
    integers: int = 0

    @property
    def worst(self) -> float:
        return max(self.errors.values(), default=0.0)


def checker_fault(path: pathlib.Path) -> str:
    """Say what onnx.checker in full finds in a file; empty if nothing."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # noqa: BLE001  it raises its own, and those of shape inference: all are findings
        return str(error)[:400]
    return ""


def opening_fault(path: pathlib.Path, *, optimized: bool = True) -> str:
    """Say why ONNX Runtime's CPU provider does not open a file; empty if it does, or only lacks a kernel for it.

    Args:
        path: the file. It is opened in another process, since some files end the process that opens them.
        optimized: with ONNX Runtime's default options; otherwise its graph optimizations are off.
    """
    try:
        said = _opener().submit(_open, path, optimized).result()
    except concurrent.futures.process.BrokenProcessPool:
        _opener.cache_clear()
        return "opening it ends the process"
    lacks = any(sign in said for sign in _LACKS_A_KERNEL) or _is_in_a_function(said, path)
    return "" if lacks else said


def _is_in_a_function(said: str, path: pathlib.Path) -> bool:
    """Whether the message is about a node without a name, in a file whose nodes all have one.

    Then it stands in the body that replaces an operator without a kernel, and ONNX Runtime casts inside some of those
    bodies as if the operator were float32.
    """
    if "Type Error" not in said or "in node ()" not in said:
        return False
    return all(node.name for node in onnx.load(path, load_external_data=False).graph.node)


@functools.cache
def _opener() -> concurrent.futures.ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # a forked ONNX Runtime would wait for threads it does not have
    return concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context)


def _open(path: pathlib.Path, optimized: bool) -> str:
    try:
        open_session(path, optimized=optimized)
    except Exception as error:  # noqa: BLE001  whatever it raises is the finding
        return str(error)[:400]
    return ""


def open_session(model: pathlib.Path | bytes, *, optimized: bool = True) -> ort.InferenceSession:
    """Open a file, or a serialized model, on ONNX Runtime's CPU provider."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    before = os.environ.get(_ANY_OPSET)
    os.environ[_ANY_OPSET] = "0"
    try:
        source = model if isinstance(model, bytes) else str(model)
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    finally:
        del os.environ[_ANY_OPSET]
        if before is not None:
            os.environ[_ANY_OPSET] = before


def read_feeds(inputs: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(inputs) as arrays:
        return dict(arrays)


@functools.lru_cache(maxsize=2)  # tests ask about one model many times in a row
def original_outputs(model: pathlib.Path, inputs: pathlib.Path) -> dict[str, Any]:
    """Run the original on ONNX Runtime's CPU provider.

    Raises:
        CannotRun: it does not run there.
    """
    try:
        session = open_session(model)
        names = [value.name for value in session.get_outputs()]
        known = {value.name for value in session.get_inputs()}
        feeds = {name: array for name, array in read_feeds(inputs).items() if name in known}
        return dict(zip(names, session.run(None, feeds), strict=True))
    except Exception as error:
        raise CannotRun(str(error)[:200]) from error


def judge_values(model: pathlib.Path, written: pathlib.Path, inputs: pathlib.Path) -> Values:
    """Compare the outputs of a file, every 16-bit result rounded, with those of the original.

    Raises:
        CannotEvaluate: the file has an operator that is unknown here.
        CannotRun: ONNX Runtime does not run the original.
    """
    proto = onnx.load(written)
    feeds = typed_feeds(proto, read_feeds(inputs))
    return compare(original_outputs(model, inputs), _run(proto, written, feeds))


def _run(proto: onnx.ModelProto, written: pathlib.Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return Interpreter(proto).run(feeds)
    except CannotEvaluate:
        if low_nodes(proto):
            raise
    session = open_session(written)  # nothing is rounded, so ONNX Runtime itself can tell
    known = {value.name for value in session.get_inputs()}
    results = session.run(None, {name: value for name, value in feeds.items() if name in known})
    return dict(zip((value.name for value in session.get_outputs()), results, strict=True))


def typed_feeds(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feeds in the types of the inputs: some conversions make inputs low."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    wanted = {name: FLOATS.get(types.get(name, 0)) for name in feeds}
    return {name: rounded(value, dtype) if (dtype := wanted[name]) else value for name, value in feeds.items()}


def compare(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> Values:
    """Compare outputs by name; float outputs may come in another float format."""
    errors, differing, others, elements = {}, 0, 0, 0
    for name, value in wanted.items():
        pairs = _pairs(value, got[name])
        if pairs is None:
            errors[name] = math.inf
            continue
        floats = [(w, g) for w, g in pairs if w.dtype.kind in "fcV"]
        if floats:
            errors[name] = _relative(*(np.concatenate([_flat(pair[i]) for pair in floats]) for i in (0, 1)))
            elements += sum(w.size for w, _ in floats)
        for w, g in pairs:
            if w.dtype.kind not in "fcV":
                differing, others = differing + int(np.count_nonzero(w != g)), others + w.size
    return Values(errors, differing / others if others else 0.0, elements, others)


def _pairs(wanted: Any, got: Any) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return the arrays of two outputs side by side; None if they differ in structure."""
    ours, theirs = list(_arrays(got)), list(_arrays(wanted))
    if len(ours) != len(theirs):
        return None
    same = all(w.shape == g.shape and _kind(w) == _kind(g) for w, g in zip(theirs, ours, strict=True))
    return list(zip(theirs, ours, strict=True)) if same else None


def _kind(array: np.ndarray) -> str:
    kind = array.dtype.kind
    return "float" if kind in "fcV" else "string" if kind in "OUS" else array.dtype.name


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, Mapping):
        yield from (np.asarray(list(value)), np.asarray(list(value.values())))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif value is not None:
        yield np.asarray(value)


def _flat(array: np.ndarray) -> np.ndarray:
    flat = np.atleast_1d(array).ravel()
    return flat.view(flat.real.dtype).astype(np.float64) if flat.dtype.kind == "c" else flat.astype(np.float64)


def _relative(wanted: np.ndarray, got: np.ndarray) -> float:
    finite = np.isfinite(wanted)
    if not np.isfinite(got[finite]).all():
        return math.inf
    norm, difference = np.linalg.norm(wanted[finite]), np.linalg.norm(got[finite] - wanted[finite])
    return float(difference / norm) if norm else (0.0 if difference == 0.0 else math.inf)


@dataclasses.dataclass(frozen=True)
class Counts:
    low: int
    casts: int


def count(written: pathlib.Path) -> Counts:
    """Count the low nodes and the casts of a file."""
    model = onnx.load(written)
    return Counts(len(low_nodes(model)), count_casts(model))
