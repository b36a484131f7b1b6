"""Ours against ONNX Runtime's own converter, both at their most eager: low nodes and casts, in sum."""

from __future__ import annotations

import collections
import concurrent.futures.process
import multiprocessing
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from amp_transpiler.precision.reasons import reason_of
from tests.corpus.agreement import TWO_PERCENT, disagreement
from tests.corpus.counting import convert_by_onnx_runtime
from tests.corpus.files import inputs_of, name_of, node_cases, real_models
from tests.corpus.onnx_case import OnnxCase
from tests.oracle.counting import all_nodes, count_casts, folded_nodes, low_nodes
from tests.placing import Place

pytestmark = pytest.mark.slow

_ONE_OF = 3  # of ONNX's node cases, one of so many is compared, unless --all-cases is given
_FEWEST_CASES = (
    1100  # of all, that its converter converts into a loadable model: fewer, and the test compares too little
)
# Float32 on purpose at level O2: positions made of integers, and what lies between quantized operators.
_LEFT = ("position", "island-quantized")
_MAX_BYTES = 300 << 20  # its converter takes gigabytes of memory for more


def _open(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_low_nodes_of_the_node_cases_are_no_fewer(
    corpus: pathlib.Path,
    tmp_path: pathlib.Path,
    place: Place,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    one_of = 1 if request.config.getoption("--all-cases") else _ONE_OF
    cases = [case for case in map(OnnxCase, node_cases(corpus)[::one_of]) if case.has_float32]
    if not cases:
        pytest.skip("onnx_backend/node is not in the corpus; lab/fetch_corpus.py makes it")
    start = time.perf_counter()
    pairs: list[tuple[onnx.ModelProto, onnx.ModelProto]] = []
    left: list[int] = []
    for case in cases:
        if case.run_fp32() is not None and (peer := _their_conversion(case.model)) is not None:
            report = amp.transpile(case.folder / "model.onnx", level="O2", verify=False)
            assert report.program is not None
            pairs.append((report.program.to_onnx(), peer))
            left.append(sum(reason_of(row.reason).code in _LEFT for row in report.decisions if row.precision == "high"))
    ours: collections.Counter[str] = collections.Counter()
    theirs: collections.Counter[str] = collections.Counter()
    compared = purposely = 0
    for (our_nodes, their_nodes), count in zip(_low_on_cuda(pairs, place, tmp_path), left, strict=True):
        if our_nodes is not None and their_nodes is not None:
            purposely += count
            ours.update(our_nodes)
            theirs.update(their_nodes)
            compared += 1
    counts = f"{ours.total()} low nodes and {purposely} left, ONNX Runtime's converter {theirs.total()}"
    told = f"{counts}, on {compared} node cases"
    record_property("summary", f"{told}, {time.perf_counter() - start:.0f} s")
    assert compared >= _FEWEST_CASES // one_of, told
    more = f"operators that are low more often there: {theirs - ours}"
    assert ours.total() + purposely >= theirs.total(), f"{told}; {more}"


def _low_on_cuda(
    pairs: Sequence[tuple[onnx.ModelProto, onnx.ModelProto]], place: Place, folder: pathlib.Path
) -> Iterator[list[list[str] | None]]:
    """Yield the low nodes of both models of each pair that the CUDA provider itself takes; None if it refuses one.

    One that it leaves to the CPU, or that only reads constants, gains nothing.
    """
    paths = [[folder / f"{index}_{side}.onnx" for side in range(2)] for index in range(len(pairs))]
    for models, places in zip(pairs, paths, strict=True):
        for model, path in zip(models, places, strict=True):
            for number, node in enumerate(all_nodes(model.graph)):
                node.name = f"node_{number}"
            onnx.save(model, path)
    placed = place(*(path for places in paths for path in places), level="disable")
    for models, places in zip(pairs, paths, strict=True):
        yield [_taken(model, placed[str(path)]) for model, path in zip(models, places, strict=True)]


def _taken(model: onnx.ModelProto, placed: Mapping[str, Any]) -> list[str] | None:
    if "error" in placed:
        return None
    left, folded = set(placed["cpu_nodes"]), folded_nodes(model.graph)
    return low_nodes(model, lambda node: f"{node.op_type} {node.name}" not in left and node.name not in folded)


def _their_conversion(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Convert with ONNX Runtime's converter.

    Returns:
        None if it fails, ONNX or ONNX Runtime do not take the result, or its I/O types (those of sequences, for one)
        are not those of `model`, although that was asked for.
    """
    interface = [(value.name, _element(value.type)) for value in (*model.graph.input, *model.graph.output)]

    try:
        converted = convert_by_onnx_runtime(model)
        _open(converted)
        typed = onnx.shape_inference.infer_shapes(converted)
    except Exception:  # noqa: BLE001  whatever it raises, it did not convert the model
        return None
    interface_values = [(value.name, _element(value.type)) for value in (*typed.graph.input, *typed.graph.output)]
    return typed if interface_values == interface else None


def _element(type_: onnx.TypeProto) -> int:
    """Return the element type of a tensor, or of the tensors inside a sequence or optional."""
    kind = type_.WhichOneof("value")
    return type_.tensor_type.elem_type if kind == "tensor_type" else _element(getattr(type_, kind).elem_type)


def test_casts_in_the_real_models_are_no_more(
    corpus: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    models = real_models(corpus)
    if not models.present:
        pytest.skip("; ".join(f"{name}: {reason}" for name, reason in models.absent.items()))
    start, ours, theirs, rows, child = time.perf_counter(), 0, 0, [], _Child()
    for path in models.present:
        if path.stat().st_size > _MAX_BYTES:
            rows.append(f"{name_of(path)}: too large for ONNX Runtime's converter here")
            continue
        their_casts = child.casts_if_right(path)
        if their_casts is None:
            rows.append(f"{name_of(path)}: ONNX Runtime's converter does not get it right")
            continue
        program = amp.transpile(path, level="O2", verify=False).program
        assert program is not None
        our_casts = count_casts(program.to_onnx()) - count_casts(onnx.load(path, load_external_data=False))
        ours, theirs = ours + our_casts, theirs + their_casts
        rows.append(f"{name_of(path)}: {our_casts}, there {their_casts}")
    told = f"{ours} casts, ONNX Runtime's converter {theirs}"
    record_property("summary", f"{told}, {time.perf_counter() - start:.0f} s: " + "; ".join(rows))
    assert theirs > 0, "nothing was compared"
    assert ours <= theirs, "\n".join([told, *rows])


class _Child:
    """A process that opens what ONNX Runtime's converter makes: some of that crashes it, and a new one is made."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def casts_if_right(self, path: pathlib.Path) -> int | None:
        if self._pool is None:
            self._pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return self._pool.submit(_casts_if_right, path).result()
        except concurrent.futures.process.BrokenProcessPool:
            self._pool = None
            return None


def _casts_if_right(path: pathlib.Path) -> int | None:
    """Return the casts that ONNX Runtime's converter adds, None if its result is wrong, or there is none."""
    with np.load(inputs_of(path)) as arrays:
        sample = dict(arrays)
    try:
        model = onnx.load(path)
        before, wanted = count_casts(model), _run(_open(model), sample)
        converted = convert_by_onnx_runtime(model)
        got = _run(_open(converted), sample)
    except Exception:  # noqa: BLE001  whatever it raises, it did not convert the model
        return None
    if any(disagreement(w, g, TWO_PERCENT) for w, g in zip(wanted, got, strict=True)):
        return None
    return count_casts(converted) - before


def _run(session: ort.InferenceSession, sample: dict[str, np.ndarray]) -> list[Any]:
    names = {value.name for value in session.get_inputs()}
    outputs: list[Any] = session.run(None, {name: array for name, array in sample.items() if name in names})
    return outputs
