#!/usr/bin/env python3
"""Time and peak memory of a float16 conversion, against today's converters, in one run.

    python lab/bench_transpile.py                  # every case that fits into this machine's memory and disk
    python lab/bench_transpile.py --cases chain_500 chain_2000 --json bench.json
    python lab/bench_transpile.py --large no       # without the 3 GB case
    python lab/bench_transpile.py --markdown       # as docs/benchmarks/README.md has it

Peers: onnxconverter-common (`pip install 'amp-transpiler[bench]'`) and onnxruntime.transformers.float16, each given a
loaded model and given a path. One that is not installed is named as skipped, one that fails as failed.

Cases, all made here and deleted afterwards:
- chains of 500, 2000 and 4000 nodes: elementwise operators, every tenth a MatMul, each with a weight of its own;
- chains of 500, 4000 and 16000 nodes of eight operators that share two constants (`chain_shared_...`): time spent on
  nodes alone. It is linear if the time per node stays the same;
- chains of 500 and 4000 nodes whose output has their input's shape (`chain_square_...`), as denoisers have:
  MatMul, Add, Relu, LayerNormalization, Softmax, Mul, Exp, Sigmoid over two constants;
- models of 520 MB and 3 GB with external data: 31 and 45 MatMul weights of random values.

Measured is the way from a file to a file (read, convert, write), each conversion in a process of its own, after imports
and after the conversion of a three-node model, which loads what is loaded late; for chains the best of three runs. Ours
is `transpile(src, dst, level="O2", verify=False)`. Peak memory is the highest resident size of the process, pages of
mapped files included.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHILD_SECONDS = 900
OPSET, IR_VERSION = 21, 10
Record = dict[str, Any]


# ---- the models ----
@dataclasses.dataclass(frozen=True)
class Case:
    """A model to convert: a chain of `nodes`, or `weights` MatMuls of `width` x `width` in external data.

    With `shared`, the chain's operators share two constants; with `square`, its output has its input's shape besides.
    """

    name: str
    nodes: int = 0
    weights: int = 0
    width: int = 64
    shared: bool = False
    square: bool = False
    repeats: int = 1

    @property
    def weight_bytes(self) -> int:
        return self.weights * self.width**2 * 4

    def write(self, folder: pathlib.Path) -> pathlib.Path:
        """Write the model into `folder`; return its path."""
        folder.mkdir()
        path = folder / "model.onnx"
        if self.nodes:
            make = chain_square if self.square else chain_shared if self.shared else chain
            onnx.save(make(self.nodes, self.width), path)
        else:
            write_large(path, self.weights, self.width)
        return path


CASES = (
    Case("chain_500", nodes=500, repeats=3),
    Case("chain_2000", nodes=2000, repeats=3),
    Case("chain_4000", nodes=4000, repeats=3),
    *(Case(f"chain_shared_{nodes}", nodes=nodes, shared=True, repeats=3) for nodes in (500, 4000, 16000)),
    *(Case(f"chain_square_{nodes}", nodes=nodes, width=16, square=True, repeats=3) for nodes in (500, 4000)),
    Case("external_520MB", weights=31, width=2048),
    Case("external_3GB", weights=45, width=4096),
)
LARGE = "external_3GB"
IN_WORDS = {
    "chain_500": "chain of 500 nodes",
    "chain_2000": "chain of 2000 nodes",
    "chain_4000": "chain of 4000 nodes",
    "chain_shared_500": "500 nodes that share two constants",
    "chain_shared_4000": "4000 of them",
    "chain_shared_16000": "16000 of them",
    "chain_square_500": "500 nodes, output as large as input",
    "chain_square_4000": "4000 of these",
    "external_520MB": "520 MB, external data",
    LARGE: "3 GB, external data",
}
LARGE_DISK, LARGE_MEMORY = 12 << 30, 18 << 30  # the source, a result and a peer's temporary copy; a peer's peak


def chain(length: int, width: int) -> onnx.ModelProto:
    """Return a chain of `length` nodes: Add, Mul, Relu, Sub, Tanh, Sigmoid, Neg, Abs, Div in turn, then a MatMul.

    Every node that takes a second operand has an initializer of its own, as in real models.
    """
    rng = np.random.default_rng(0)
    kinds = ("Add", "Mul", "Relu", "Sub", "Tanh", "Sigmoid", "Neg", "Abs", "Div", "MatMul")
    names = ["x", *(f"v{index}" for index in range(length - 1)), "y"]
    nodes, tensors = [], []
    for index in range(length):
        kind = kinds[index % len(kinds)]
        inputs = [names[index]]
        if kind in ("Add", "Mul", "Sub", "Div", "MatMul"):
            matrix = kind == "MatMul"
            values = rng.standard_normal((width, width)) / width**0.5 if matrix else rng.uniform(0.5, 1, width)
            tensors.append(numpy_helper.from_array(values.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        nodes.append(helper.make_node(kind, inputs, [names[index + 1]], name=f"{kind}_{index}"))
    return _model("chain", nodes, tensors, width)


def chain_shared(length: int, width: int) -> onnx.ModelProto:
    """Return a chain of `length` nodes of eight elementwise operators whose second operands are two initializers."""
    rng = np.random.default_rng(0)
    kinds = ("Add", "Mul", "Relu", "Sub", "Tanh", "Sigmoid", "Neg", "Abs")
    tensors = [numpy_helper.from_array(rng.uniform(0.5, 1, width).astype(np.float32), name) for name in ("c0", "c1")]
    names = ["x", *(f"v{index}" for index in range(length - 1)), "y"]
    nodes = []
    for index in range(length):
        kind = kinds[index % len(kinds)]
        inputs = [names[index], *([f"c{index % 2}"] if kind in ("Add", "Mul", "Sub") else [])]
        nodes.append(helper.make_node(kind, inputs, [names[index + 1]], name=f"{kind}_{index}"))
    return _model("chain_shared", nodes, tensors, width)


def chain_square(length: int, width: int) -> onnx.ModelProto:
    """Return a chain of `length` nodes of eight operators over two constants, from [4, width] to [4, width]."""
    rng = np.random.default_rng(0)
    kinds = ("MatMul", "Add", "Relu", "LayerNormalization", "Softmax", "Mul", "Exp", "Sigmoid")
    seconds = {"MatMul": ["w"], "Add": ["c"], "LayerNormalization": ["c"], "Mul": ["c"]}
    arrays = {"w": rng.standard_normal((width, width)) / width**0.5, "c": rng.uniform(0.5, 1, width)}
    tensors = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in arrays.items()]
    names = ["x", *(f"v{index}" for index in range(length - 1)), "y"]
    nodes = [
        helper.make_node(kind, [names[i], *seconds.get(kind, [])], [names[i + 1]], name=f"{kind}_{i}")
        for i, kind in enumerate(kinds[i % len(kinds)] for i in range(length))
    ]
    return _model("chain_square", nodes, tensors, width, batch=4)


def write_large(path: pathlib.Path, weights: int, width: int) -> None:
    """Write a model of MatMuls and ReLUs whose weights lie in `model.onnx.data`, one weight at a time."""
    rng = np.random.default_rng(0)
    nodes, tensors, size = [], [], width * width * 4
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        for index in range(weights):
            values = rng.standard_normal((width, width), dtype=np.float32)
            file.write((values * np.float32(1 / width**0.5)).tobytes())
            tensors.append(_external(f"w{index}", width, data.name, index * size, size))
            value = "x" if index == 0 else f"r{index - 1}"
            nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"], name=f"MatMul_{index}"))
            output = "y" if index == weights - 1 else f"r{index}"
            nodes.append(helper.make_node("Relu", [f"m{index}"], [output], name=f"Relu_{index}"))
    path.write_bytes(_model("large", nodes, tensors, width).SerializeToString())


def _external(name: str, width: int, location: str, offset: int, length: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[width, width])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _model(
    name: str, nodes: list[onnx.NodeProto], tensors: list[TensorProto], width: int, batch: str | int = "batch"
) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [batch, width]) for end in ("x", "y")]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


# ---- the converters, each run in a process of its own ----
def _ours() -> Callable[[str, str], Record]:
    import amp_transpiler as amp

    def convert(source: str, target: str) -> Record:
        report = amp.transpile(source, target, level="O2", verify=False)
        return {"phases": dict(report.phases), "low_nodes": report.low_nodes, "nodes": report.nodes}

    return convert


def _save(model: onnx.ModelProto, target: str) -> None:
    external = model.ByteSize() > 100 << 20
    onnx.save(model, target, save_as_external_data=external, location=pathlib.Path(target).name + ".data")


def _common() -> Callable[[str, str], Record]:
    from onnxconverter_common import float16

    def convert(source: str, target: str) -> Record:
        _save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)
        return {}

    return convert


def _common_path() -> Callable[[str, str], Record]:
    from onnxconverter_common import float16

    def convert(source: str, target: str) -> Record:
        _save(float16.convert_float_to_float16_model_path(source, keep_io_types=True), target)
        return {}

    return convert


def _runtime() -> Callable[[str, str], Record]:
    from onnxruntime.transformers import float16

    def convert(source: str, target: str) -> Record:
        _save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)
        return {}

    return convert


def _runtime_path() -> Callable[[str, str], Record]:
    from onnxruntime.transformers import float16

    def convert(source: str, target: str) -> Record:
        _save(float16.convert_float_to_float16(source, keep_io_types=True), target)
        return {}

    return convert


@dataclasses.dataclass(frozen=True)
class Tool:
    """A converter: its name, and how it is imported."""

    label: str
    load: Callable[[], Callable[[str, str], Record]]


TOOLS = {
    "ours": Tool("amp_transpiler", _ours),
    "common": Tool("onnxconverter-common, a loaded model", _common),
    "common_path": Tool("onnxconverter-common, a path", _common_path),
    "runtime": Tool("onnxruntime.transformers, a loaded model", _runtime),
    "runtime_path": Tool("onnxruntime.transformers, a path", _runtime_path),
}
MISSING = "not installed: "


def run_child(tool: str, source: str, target: str) -> None:
    """Convert once and print seconds, peak memory and what the converter said, or its error, as one JSON line."""
    try:
        convert = TOOLS[tool].load()
    except ImportError as error:
        print(json.dumps({"skipped": f"{MISSING}{error.name or error}"}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        onnx.save(chain(3, 4), pathlib.Path(scratch) / "warm.onnx")
        convert(f"{scratch}/warm.onnx", f"{scratch}/warm.out.onnx")
    before = _resident("VmRSS")
    start = time.perf_counter()
    try:
        record = convert(source, target)
    except Exception as error:  # noqa: BLE001  a converter that fails, in whatever way, is a result
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}))
        return
    record["seconds"] = time.perf_counter() - start
    record["peak_bytes"] = _resident("VmHWM")
    record["bytes_before"] = before
    print(json.dumps(record))


def _resident(key: str) -> int:
    """Return `VmRSS` (now) or `VmHWM` (at most) of this process, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}: this benchmark measures memory on Linux only")


# ---- the run ----
def measure(tool: str, source: pathlib.Path, repeats: int) -> Record:
    """Return the record of the fastest of `repeats` conversions; the peak is the smallest of theirs."""
    records = [_measure_once(tool, source) for _ in range(repeats)]
    bad = next((record for record in records if "seconds" not in record), None)
    if bad is not None:
        return bad
    best = min(records, key=lambda record: float(record["seconds"]))
    return {**best, "peak_bytes": min(record["peak_bytes"] for record in records)}


def _measure_once(tool: str, source: pathlib.Path) -> Record:
    target = source.parent / tool / "model.fp16.onnx"
    target.parent.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", tool, str(source), str(target)]
    try:
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=CHILD_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {CHILD_SECONDS} s"}
    finally:
        size = sum(path.stat().st_size for path in target.parent.iterdir())
        shutil.rmtree(target.parent)
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        killed = " (killed: out of memory?)" if result.returncode in (-9, 137) else ""
        return {"error": f"exit status {result.returncode}{killed} {last}"[:300]}
    record: Record = json.loads(lines[-1])
    if "seconds" in record:
        record["output_bytes"] = size
    return record


def ratios(records: dict[str, Record]) -> dict[str, Record]:
    """Return ours over each peer that succeeded: time and peak memory."""
    ours = records.get("ours", {})
    if "seconds" not in ours:
        return {}
    return {
        name: {
            "time": ours["seconds"] / record["seconds"],
            "memory": ours["peak_bytes"] / record["peak_bytes"],
        }
        for name, record in records.items()
        if name != "ours" and "seconds" in record
    }


def run_case(case: Case, tools: Sequence[str], folder: pathlib.Path) -> Record:
    """Make the model of `case`, convert it with every tool and delete it."""
    source = case.write(folder / case.name)
    records = {}
    for tool in tools:
        records[tool] = measure(tool, source, case.repeats)
        shown = records[tool].get("error") or records[tool].get("skipped") or f"{records[tool]['seconds']:.3f} s"
        print(f"{case.name}: {TOOLS[tool].label}: {shown}", file=sys.stderr, flush=True)
    shutil.rmtree(source.parent)
    return {**dataclasses.asdict(case), "tools": records, "ours_over": ratios(records)}


def goals(cases: dict[str, Record]) -> list[tuple[str, float, float]]:
    """Return what was to be reached, for the cases that were run: the goal in words, its limit, the value measured."""
    rows: list[tuple[str, float, float]] = []
    small, big = cases.get("chain_500"), cases.get("chain_4000")
    if small and big and all("seconds" in each["tools"].get("ours", {}) for each in (small, big)):
        growth = big["tools"]["ours"]["seconds"] / small["tools"]["ours"]["seconds"] / 8
        rows.append(("time per node at 4000 nodes over that at 500 (linear: about 1)", 1.5, growth))
    if big and big["ours_over"]:
        slowest = max(ratio["time"] for ratio in big["ours_over"].values())
        rows.append(("4000 nodes: time over that of the fastest peer", 10, slowest))
    for name in ("external_520MB", LARGE):
        for peer, ratio in cases.get(name, {}).get("ours_over", {}).items():
            rows.append((f"{name}: time over that of {TOOLS[peer].label}", 0.25, ratio["time"]))
            rows.append((f"{name}: peak memory over that of {TOOLS[peer].label}", 0.125, ratio["memory"]))
    return rows


def show(results: Sequence[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    # Wide enough for a file or a pipe, where no terminal tells its width.
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("case", "converter", "seconds", "x ours", "peak MB", "x ours", "output MB")
    for index in (2, 3, 4, 5, 6):
        table.columns[index].justify = "right"
    for case in results:
        for name, record in case["tools"].items():
            label = TOOLS[name].label
            if "seconds" not in record:
                reason = f"failed: {record['error']}" if "error" in record else f"skipped, {record['skipped']}"
                table.add_row(case["name"], f"{label}: {reason}")
                continue
            time_ratio = memory_ratio = ""
            if name in case["ours_over"]:
                time_ratio = f"{1 / case['ours_over'][name]['time']:.2f}"
                memory_ratio = f"{1 / case['ours_over'][name]['memory']:.2f}"
            numbers = (f"{record['seconds']:.3f}", time_ratio, f"{record['peak_bytes'] / 1e6:.0f}", memory_ratio)
            table.add_row(case["name"], label, *numbers, f"{record['output_bytes'] / 1e6:.1f}")
        table.add_section()
    console.print(table)
    for what, limit, value in goals({case["name"]: case for case in results}):
        console.print(f"{'reached' if value <= limit else 'MISSED '}  {what}: {value:.3g} (at most {limit:g})")


def markdown(results: Sequence[Record]) -> Iterator[str]:
    """Yield the table and the sums as `docs/benchmarks/README.md` has them."""
    columns = ("ours", "common", "common_path", "runtime", "runtime_path")
    for case in results:
        cells = [_cell(case["tools"].get(tool, {})) for tool in columns]
        yield "| " + " | ".join([IN_WORDS[case["name"]], *cells]) + " |"
    cases = {case["name"]: case for case in results}
    per_node = {
        name: case["tools"]["ours"]["seconds"] / case["nodes"]
        for name, case in cases.items()
        if case["nodes"] and "seconds" in case["tools"].get("ours", {})
    }
    shared = ("chain_shared_4000", "chain_shared_16000")
    for name, base in (("chain_4000", "chain_500"), *((each, "chain_shared_500") for each in shared)):
        if name in per_node and base in per_node:
            yield f"time per node, {name} over {base}: {per_node[name] / per_node[base]:.2f}"
    for name, case in cases.items():
        if over := case["ours_over"].values():
            # Over the fastest peer and the smallest one: the largest of our ratios.
            time, memory = (max(ratio[what] for ratio in over) for what in ("time", "memory"))
            yield f"{name}: {time:.2g} of the time of the fastest, {memory:.2g} of the memory of the smallest"
    before = [case["tools"].get("ours", {}).get("bytes_before", 0) for case in results]
    yield f"in use before a conversion: {max(before) / 1e6:.0f} MB"


def _cell(record: Record) -> str:
    if "seconds" not in record:
        return "fails" if "error" in record else "-"
    digits = max(0, 3 if record["seconds"] < 1 else 2 - int(math.log10(record["seconds"])))
    return f"{record['seconds']:.{digits}f} s, {record['peak_bytes'] / 1e6:.0f} MB"


def large_fits(folder: pathlib.Path) -> str | None:
    """Return why the 3 GB case does not fit here, or None."""
    free = shutil.disk_usage(folder).free
    if free < LARGE_DISK:
        return f"{free >> 30} GB of disk are free in {folder}, {LARGE_DISK >> 30} are needed"
    memory = int(pathlib.Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    if memory < LARGE_MEMORY:
        return f"{memory >> 30} GB of memory are available, a peer needs up to {LARGE_MEMORY >> 30}"
    return None


def environment() -> Record:
    """Return what the numbers depend on."""
    packages = ("onnx", "onnx-ir", "numpy", "onnxruntime-gpu", "onnxruntime", "onnxconverter-common", "amp-transpiler")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count(), **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL", help=", ".join(TOOLS))
    parser.add_argument("--large", choices=("auto", "yes", "no"), default="auto", help=f"run {LARGE} (default: auto)")
    parser.add_argument("--scratch", type=pathlib.Path, help="where the models are made (default: the system's)")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--markdown", action="store_true", help="print the rows of docs/benchmarks/README.md")
    parser.add_argument("--child", nargs=3, metavar=("TOOL", "SOURCE", "TARGET"), help="(internal) convert once")
    options = parser.parse_args()
    if options.child:
        run_child(*options.child)
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.scratch) as scratch:
        folder = pathlib.Path(scratch)
        for case in CASES:
            if case.name not in options.cases:
                continue
            reason = None
            if case.name == LARGE and options.large != "yes":
                reason = "--large no" if options.large == "no" else large_fits(folder)
            if reason:
                print(f"{case.name}: skipped: {reason}", file=sys.stderr)
                continue
            results.append(run_case(case, options.tools, folder))
    if options.markdown:
        print("\n".join(markdown(results)))
    else:
        show(results)
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(), "cases": results}, indent=1))
    # A peer may fail; ours may not.
    return 1 if any("error" in case["tools"].get("ours", {}) for case in results) else 0


if __name__ == "__main__":
    sys.exit(main())
