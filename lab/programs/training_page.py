"""The tables of `bench_training.py`, and the page that holds them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from amp_transpiler.cost import DEVICES
from programs.sizes import NETWORKS

__all__ = ["page", "tables"]

Record = dict[str, Any]
MB, GB = 2**20, 1e9
FIRST_COUNT = {"rocm": 12, "raf": 9, "resnet18": 23, "transformer": 42}  # GB of PyTorch's AMP, which set the aim
LAYOUTS = {1: "one layout of addresses", 3: "three layouts of addresses"}

HEAD = """# The training step

`python lab/bench_training.py --write` (needs `pip install '.[torch]'`, gcc and binutils); {date}, ONNX Runtime
{ort}, PyTorch {torch}. No GPU has been used: launches, copies and memory are counted on ONNX Runtime's CUDA provider
over stand-ins for CUDA's libraries (`lab/launches.py`), which is the real provider with its graph optimization,
kernels and arena; milliseconds are predicted.

Networks: AMD's network of pointwise convolutions as in `examples/train_convnet.py`; RAF's BERT of one layer as in
`examples/raf_bert.py`; ResNet-18 on pictures of {pixels} pixels, batch {pictures}, and ResNet-50, batch {fewer},
Momentum; a transformer of the sizes
of BERT-base with four layers, batch {batch}, {tokens} tokens, AdamW. PyTorch, beside them, is eager mode: autocast and
a gradient scaler, fused attention, a fused optimizer, counted operator by operator in the same run on tensors without
contents.

## Launches, bytes and memory

A launch is a kernel or a library's call; of PyTorch's an operator that is no view. Bytes are what the kernels of the
optimized graph read and write, each tensor once, in GB; those of casts stand behind them. Memory in MB: "in use" is the
most that tensors take at the same time, exactly; "reserved" what ONNX Runtime's arena takes from the device for it, the
least of {layouts}.

"""
RESERVED = """
Memory is reserved beyond what is in use because room that is free lies in several places. A step keeps the old state
until the new one is whole, so that a step that fails changes nothing; the new one then lies amid what the next step
needs. RAF's BERT, a layer beside a large embedding, has the most of it. State in two sets of buffers, made before the
first run and written in turns, was tried at O1: what else the step needs then lies as badly, and more is reserved.
"""
GRAPHS = {"plain": "as it is", "turns": "graphs in turns", "in_place": "graph in place"}  # by forms of steps
IN_PLACE = """
## Memory of steps as CUDA graphs

Reserved after four steps, in MB, under one layout of addresses. `Executor(cuda_graph=True)` captures two graphs that
take turns, each with its own set of buffers for the state. With `in_place=True` there is one graph, which overwrites
its state; a node that reads old state late is waited for (`update_passes/read_before_update.py`).

"""
BYTES = """
## Bytes against PyTorch's AMP

Two counts of what PyTorch moves in a step in float16. The first was made before these networks were tuned, and set the
aim: at most a quarter more than what its operators move in eager AMP with a fused optimizer. The strict one is that of
the table above: each tensor once, in its own format, as if caches held everything that an operator reads twice.

"""
PREDICTED = """
## Predicted milliseconds

Ours: [prices](../concepts/prices.md) of the kernels that ONNX Runtime launches on an H100, scaled for the other
devices; the host asks for one kernel after the other and runs ahead of slow ones. In the column "graph" a CUDA graph
replays the whole step, and the host asks once. "Busy" is what the kernels take, and "exact float32" what they take if
nothing is multiplied in TF32, which is what RAF's document compares with. PyTorch's kernels have no prices: theirs is a
roofline over bytes and operations, which is too short, so the two cannot be compared. [What an H100 took](gpu.md) of
both was measured.

"""
LEFT = """
## What is launched beyond PyTorch's count

Lowest level of each network, float16.

"""
ON_CPU = """
## On a CPU

float32, one thread, in milliseconds of processor time; steps of both in turns, and the median of the ratios of
neighbours. PyTorch: eager mode, `scaled_dot_product_attention`, its optimizers as they come. Compiling is everything
from the empty program to the end of the first step.

"""


def page(found: Record) -> str:
    """Return the whole page."""
    versions = {"ort": _version("onnxruntime-gpu", "onnxruntime"), "torch": _version("torch")}
    resnet, bert = NETWORKS["resnet18"], NETWORKS["transformer"]
    sizes = {"pixels": resnet.size, "pictures": resnet.batch, "batch": bert.batch, "tokens": bert.size}
    sizes["fewer"] = NETWORKS["resnet50"].batch
    layouts = LAYOUTS.get(found["layouts"], f"{found['layouts']} layouts of addresses")
    head = HEAD.format(date=dt.datetime.now(tz=dt.UTC).date(), **versions, **sizes, layouts=layouts)
    return head + _joined(found, RESERVED + IN_PLACE, BYTES, PREDICTED, LEFT, ON_CPU)


def tables(found: Record) -> str:
    """Return the tables alone."""
    return _joined(found, "\n", "\n", "\n", "\n", "\n")


def _joined(record: Record, *between: str) -> str:
    cells = (counts(record), graphs(record), moved(record), predictions(record), left(record), on_cpu(record))
    parts = [cells[0]]
    for text, table in zip(between, cells[1:], strict=True):
        parts += [text, table]
    return "".join(parts)


def counts(found: Record) -> str:
    """Return launches, bytes and memory: a row for each step, PyTorch's among them."""
    head = "step | launches | of them casts | GB moved | of it casts | in use | reserved | bytes against PyTorch's"
    return _table(head.split(" | "), list(_count_rows(found)))


def _count_rows(record: Record) -> Iterable[list[str]]:
    theirs = {(step["network"], step["dtype"]): step for step in record["torch"]}
    for name in dict.fromkeys(step["network"] for step in record["torch"]):
        for step in (step for step in record["steps"] if step["network"] == name):
            ours, memory = step["ours"], step["ours"]["memory"]
            yield [
                _label(step),
                f"{ours['launches']}",
                f"{ours['casts']}",
                f"{ours['bytes'] / GB:.2f}",
                f"{ours['cast_bytes'] / GB:.2f}",
                f"{memory['in_use_peak'] / MB:.0f}",
                f"{ours['reserved'] / MB:.0f}" if "reserved" in ours else "",
                f"{ours['bytes'] / theirs[name, step['dtype']]['bytes']:.2f}",
            ]
        for (network, dtype), step in theirs.items():
            if network == name:
                yield [
                    _torch_label(network, dtype),
                    f"{step['launches']}",
                    _casts(step),
                    f"{step['bytes'] / GB:.2f}",
                    "",
                    "",
                    "",
                    "",
                ]


def graphs(found: Record) -> str:
    """Return the memory of steps as CUDA graphs: a row for each step that was counted so."""
    rows = []
    for step in found["steps"]:
        sizes = step["ours"].get("graphs")
        if sizes is not None:
            cells = ["not possible" if sizes[form] is None else f"{sizes[form] / MB:.0f}" for form in GRAPHS]
            rows.append([f"{_label(step)}, MB", *cells])
    return _table(["reserved", *GRAPHS.values()], rows)


def moved(found: Record) -> str:
    """Return the bytes of low steps against both counts of PyTorch's AMP."""
    heads = ["GB moved", "ours", "PyTorch's, first count", "ratio", "PyTorch's, strict count", "ratio"]
    theirs = {step["network"]: step["bytes"] for step in found["torch"] if step["dtype"] == "float16"}
    rows = []
    for step in found["steps"]:
        name = step["network"]
        if step["dtype"] != "float16" or name not in theirs:
            continue
        cells = [f"{_label(step)}, GB", f"{step['ours']['bytes'] / GB:.2f}"]
        for count in (FIRST_COUNT.get(name, 0) * GB, theirs[name]):
            cells += [f"{count / GB:.2f}", f"{step['ours']['bytes'] / count:.2f}"] if count else ["", ""]
        rows.append(cells)
    return _table(heads, rows)


def _casts(step: Record) -> str:
    return f"{step['by_operator'].get('_to_copy', 0)}"


def predictions(found: Record) -> str:
    """Return predicted milliseconds: a row for each step, a column for each device."""
    heads = ["predicted ms", *DEVICES, "H100, graph", "H100, busy", "H100, busy, exact float32"]
    rows = []
    for step in found["steps"]:
        predicted = step["ours"]["predicted"]
        cells = [f"{predicted[name]['ms']:.2f}" for name in DEVICES]
        last = [f"{predicted['H100'][kind]:.2f}" for kind in ("graph_ms", "busy_ms", "exact_busy_ms")]
        rows.append([f"{_label(step)}, ms", *cells, *last])
    for step in found["torch"]:
        cells = [f"{step['predicted'][name]['ms']:.2f}" for name in DEVICES]
        rows.append([f"{_torch_label(step['network'], step['dtype'])}, ms", *cells, "", "", ""])
    return _table(heads, rows)


def left(found: Record) -> str:
    """Return launches by what they do, ours and PyTorch's."""
    heads = ["network: work", "ours", "PyTorch's", "our operators", "why"]
    rows = [
        [
            f"{NETWORKS[row['network']].name}, {row['level']}: {row['work']}",
            f"{row['ours']}",
            f"{row['torch']}",
            row["operators"],
            row["reason"],
        ]
        for row in found["leftover"]
    ]
    return _table(heads, rows)


def on_cpu(found: Record) -> str:
    """Return times on the CPU."""
    heads = ["on a CPU", "ours, ms", "PyTorch's, ms", "ratio"]
    rows = []
    for row in found["cpu"]:
        layers = f", layers: {row['layers']}" if row["layers"] else ""
        what = "step" if row["what"] == "step" else "compiling and first step"
        times = [f"{1e3 * row[side]:.1f}" for side in ("ours", "torch")]
        rows.append([f"{NETWORKS[row['network']].name}{layers}: {what}", *times, f"{row['ratio']:.2f}"])
    return _table(heads, rows)


def _label(step: Record) -> str:
    dtype = "" if step["level"] == "fp32" else f" {step['dtype']}"
    return f"{NETWORKS[step['network']].name}, {step['level']}{dtype}"


def _torch_label(network: str, dtype: str) -> str:
    return f"{NETWORKS[network].name}, PyTorch, {dtype}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _version(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return "not installed"
