"""ONNX's own backend tests: written out as files, and whether ONNX Runtime's CPU provider reproduces each."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from corpus.facts import type_name

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

Record = dict[str, Any]
KINDS = ("node", "simple", "light", "pytorch-converted", "pytorch-operator")


# ---- writing the node tests ----
def write_node_tests(root: pathlib.Path) -> int:
    """Write ONNX's node tests to `root/onnx_backend/node`; return how many.

    Wheels of onnx >= 1.20 carry no data/node; the generators that they do carry make the same cases.
    """
    from onnx.backend.test.case.node import collect_testcases

    cases = collect_testcases(None)
    for case in cases:
        if case.model is None or case.data_sets is None:
            raise ValueError(f"onnx's node test {case.name} has no model or no data")
        folder = root / "onnx_backend" / "node" / case.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
        for index, (inputs, outputs) in enumerate(case.data_sets):
            data_set = folder / f"test_data_set_{index}"
            data_set.mkdir(exist_ok=True)
            for prefix, values, infos in (
                ("input", inputs, case.model.graph.input),
                ("output", outputs, case.model.graph.output),
            ):
                for number, (value, info) in enumerate(zip(values, infos, strict=False)):
                    (data_set / f"{prefix}_{number}.pb").write_bytes(_to_proto(value, info).SerializeToString())
    return len(cases)


def _to_proto(value: Any, info: onnx.ValueInfoProto) -> Any:
    if isinstance(value, TensorProto):
        return value
    kind = info.type.WhichOneof("value")
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name)
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(value, info.name)


# ---- running every case ----
def report(root: pathlib.Path) -> list[Record]:
    """Return a record for every backend case: facts in short, and `match`, `differs`, `loads` or `fails`."""
    import onnxruntime as ort

    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # else ONNX Runtime refuses opsets newer than its own
    ort.set_default_logger_severity(4)
    return [_run_case(kind, folder, model, root) for kind, folder, model in _cases(root)]


def _cases(root: pathlib.Path) -> Iterator[tuple[str, pathlib.Path, pathlib.Path]]:
    for kind in KINDS:
        for folder in sorted((root / "onnx_backend" / kind).glob("*")):
            model = folder if kind == "light" and folder.suffix == ".onnx" else folder / "model.onnx"
            if model.is_file():
                yield kind, folder, model


def _run_case(kind: str, folder: pathlib.Path, path: pathlib.Path, root: pathlib.Path) -> Record:
    record: Record = {"kind": kind, "name": folder.name, "path": path.relative_to(root).as_posix()}
    try:
        model = onnx.load(path)
        record.update(_short_facts(model))
        if "bfloat16" in record["io_dtypes"]:
            _cast_bfloat16_edges(model)
            record["tested_with"] = "fp32 casts at bf16 inputs/outputs"
        session = _session(model, record)
        data_sets = sorted(folder.glob("test_data_set_*")) if folder.is_dir() else []
        record["status"] = "loads" if not data_sets else _compare(session, model, data_sets[0], record)
    except Exception as error:  # noqa: BLE001  the failure is the finding
        record["status"] = "fails"
        text = re.sub(r"/onnxruntime_src/\S+|onnxruntime::\w+::?\S*", "", " ".join(str(error).split()))
        record["why"] = (text or type(error).__name__)[:60] + (f" ... {text[-140:]}" if len(text) > 60 else "")
    return record


def _short_facts(model: onnx.ModelProto) -> Record:
    types = set()
    for value in [*model.graph.input, *model.graph.output]:
        tensor = value.type.HasField("tensor_type")
        types.add(type_name(value.type.tensor_type.elem_type) if tensor else str(value.type.WhichOneof("value")))
    record: Record = {
        "opset": max([entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")] or [0]),
        "ops": sorted({node.op_type for node in model.graph.node}),
        "io_dtypes": sorted(types - {"None"}),
    }
    if model.functions:
        record["functions"] = len(model.functions)
    return record


def _cast_bfloat16_edges(model: onnx.ModelProto) -> None:
    """Make bfloat16 inputs and outputs float32 behind casts: numpy feeds cannot be bfloat16."""
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for values, into, inwards in ((model.graph.input, before, True), (model.graph.output, after, False)):
        for value in values:
            if value.type.tensor_type.elem_type != TensorProto.BFLOAT16:
                continue
            inner, value.name = value.name, f"{value.name}__f32"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            ends = (value.name, inner) if inwards else (inner, value.name)
            target = TensorProto.BFLOAT16 if inwards else TensorProto.FLOAT
            into.append(helper.make_node("Cast", [ends[0]], [ends[1]], to=target))
    nodes = [*before, *model.graph.node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _session(model: onnx.ModelProto, record: Record) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    except Exception as error:
        supported = re.search(r"max supported IR version: (\d+)", str(error))
        if supported is None:
            raise
        record["ir_version"] = model.ir_version  # newer than this ONNX Runtime reads
        model.ir_version = int(supported.group(1))
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _compare(session: Any, model: onnx.ModelProto, data_set: pathlib.Path, record: Record) -> str:
    arrays = _read(data_set, "input", model.graph.input)
    wanted = _read(data_set, "output", model.graph.output)
    feed = {info.name: value for info, value in zip(model.graph.input, arrays, strict=True) if value is not None}
    relative = 1e-2 if "tested_with" in record else 1e-3
    for got, want in zip(session.run(None, feed), wanted, strict=True):
        if not (isinstance(want, np.ndarray) and isinstance(got, np.ndarray)):
            continue
        if want.dtype.kind in "fc" and got.dtype.kind in "fc":
            same = np.allclose(got, want, rtol=relative, atol=relative / 100, equal_nan=True)
        else:
            same = np.array_equal(got, want)
        if not same:
            return "differs"
    return "match"


def _read(data_set: pathlib.Path, prefix: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values: list[Any] = []
    for number, info in enumerate(infos):
        path = data_set / f"{prefix}_{number}.pb"
        if not path.exists():
            values.append(None)
            continue
        content = path.read_bytes()
        if info.type.HasField("sequence_type"):
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(content)))
        elif info.type.HasField("optional_type"):
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(content)))
        else:
            array = numpy_helper.to_array(TensorProto.FromString(content))
            values.append(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)
    return values
