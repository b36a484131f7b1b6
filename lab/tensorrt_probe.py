#!/usr/bin/env python3
"""Asks TensorRT-RTX's builder what it refuses in 16 bits that it takes in float32: ONNX's node tests, one by one.

    python lab/tensorrt_probe.py OUT.jsonl [--part 0/2] [--match REGEX] [--known]

It needs the extra `tensorrt` and no GPU. Beside ONNX's own cases come the graphs of `tensorrt_graphs.txt`. Of each case
with floats, the inputs after the first become constants, as a model's weights are. It is built as it is and, where that
is taken, at level O2 in both formats. A row is written of each case: `refused` names the format -> node, operator and
reason. The rows of `amp_transpiler/targets/data/tensorrt.txt` are written by hand from these, each with a test that
builds. They are ignored here, so that a new version shows what it has learned; with `--known` they count, and nothing
should be refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

import amp_transpiler as amp
from amp_transpiler.child_process.child import RuntimeCrash, lease
from amp_transpiler.errors import AmpError
from amp_transpiler.runtime.engines import EngineBuild, Profile
from amp_transpiler.systems.option_names import DtypeName
from amp_transpiler.targets import tensorrt
from amp_transpiler.verification.engine_check import profile_of
from tensorrt_graphs import graphs

FORMATS: tuple[DtypeName, ...] = ("float16", "bfloat16")
_FLOAT = onnx.TensorProto.FLOAT


def main() -> int:
    """Run the probe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--match", default="")
    parser.add_argument("--known", action="store_true", help="what the table of refusals has stays float32")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    if not arguments.known:
        vars(tensorrt)["refusals"] = tuple  # a function without rows
    with arguments.out.open("w", encoding="utf-8") as out, tempfile.TemporaryDirectory() as folder:
        for index, (name, model, sample) in enumerate(_cases(arguments.match)):
            if index % parts == part:
                out.write(json.dumps(_row(name, model, sample, pathlib.Path(folder))) + "\n")
                out.flush()
    return 0


def _cases(match: str) -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)  # of every operator
    for name, graph, sample in graphs():
        if re.search(match, name):
            yield name, graph, sample
    for case in cases:
        model = case.model
        if model is not None and case.data_sets is not None and re.search(match, case.name):
            inputs, _ = case.data_sets[0]
            values = zip(model.graph.input, inputs, strict=False)
            types = [value.type.tensor_type.elem_type for value in [*model.graph.input, *model.graph.output]]
            if _FLOAT in types and all(isinstance(array, np.ndarray | np.generic) for array in inputs):
                yield case.name, model, {value.name: np.asarray(array) for value, array in values}


def with_constants(model: onnx.ModelProto, sample: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model whose inputs after the first float one are constants."""
    constant = onnx.ModelProto()
    constant.CopyFrom(model)
    first = next((v for v in model.graph.input if v.type.tensor_type.elem_type == _FLOAT), None)
    for value in model.graph.input:
        if value != first:
            constant.graph.initializer.append(onnx.numpy_helper.from_array(sample[value.name], value.name))
            constant.graph.input.remove(value)
    return constant


def _row(name: str, model: onnx.ModelProto, sample: dict[str, np.ndarray], folder: pathlib.Path) -> dict[str, Any]:
    row: dict[str, Any] = {
        "case": name,
        "operators": sorted({node.op_type for node in model.graph.node}),
        "opset": next((entry.version for entry in model.opset_import if not entry.domain), 0),
    }
    model = with_constants(model, sample)
    profile = profile_of([{value.name: sample[value.name] for value in model.graph.input}])
    onnx.save(model, folder / "in.onnx")
    source = build(folder / "in.onnx", profile)
    row["builder"], row["float32"] = source.builder, source.fault
    if source.fault:
        return row
    row["refused"] = {}
    for dtype in FORMATS:
        try:
            report = amp.transpile(
                folder / "in.onnx", folder / "out.onnx", level="O2", target="tensorrt", dtype=dtype, verify=False
            )
        except AmpError as error:
            row["refused"][dtype] = ["", "", f"not converted: {error}"]
            continue
        engine = build(folder / "out.onnx", profile)
        row[dtype] = report.low_nodes
        if engine.fault:
            row["refused"][dtype] = [engine.node, engine.operator, engine.fault]
    return row


def build(path: pathlib.Path, profile: Profile) -> EngineBuild:
    """Build an engine in a child process."""
    try:
        with contextlib.ExitStack() as stack:
            child = stack.enter_context(lease())
            engine: EngineBuild = child.ask("build_engine", str(path.absolute()), profile)
            return engine
    except RuntimeCrash as crash:
        return EngineBuild("", fault=f"crash: {crash.signal}")


if __name__ == "__main__":
    sys.exit(main())
