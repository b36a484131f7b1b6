#!/usr/bin/env python3
"""Counts which written-out normalisations, GELUs and attentions are fused, beside a matcher that shares no code.

    python lab/count_recognised.py FOLDER_OR_MODEL... [--torch] [--rows OUT.jsonl]

The matcher (`programs/written_out.py`) reads ONNX's protos alone. What it counts in a model is held against the
operators that `--fuse contrib` adds to it, unverified, at level O2. `--torch` exports small modules, too: by torch's
two exporters, with and without decomposition, in several opsets. It prints a row a model, and the sums. No GPU.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import onnx

import amp_transpiler as amp
from amp_transpiler.errors import AmpError
from programs.written_out import KINDS, written_out

Record: TypeAlias = dict[str, Any]

OPSET = 20  # of the result at least: ONNX has LayerNormalization since 17 and Gelu since 20
OPERATORS = {
    "LayerNormalization": ("LayerNormalization", "SkipLayerNormalization"),
    "RMSNormalization": ("RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
    "Gelu": ("Gelu", "FastGelu", "BiasGelu"),
    "Attention": ("Attention", "MultiHeadAttention", "GroupQueryAttention"),
}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, nargs="*")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--rows", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = list(_paths(options.models))
        if options.torch:
            from programs.torch_forms import export_all

            paths += export_all(pathlib.Path(folder))
        for path in paths:
            row = counted(path)
            if row is not None:
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.rows is not None:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(summary(rows))
    return 0


def counted(path: pathlib.Path) -> Record | None:
    """Return what is written out in a model and what of it is fused; None where nothing is, or it does not convert."""
    proto = onnx.load(path)
    written = written_out(proto)
    if not any(written.values()):
        return None
    before = _operators(proto)
    opset = max(OPSET, *(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")))
    try:
        report = amp.transpile(proto, level="O2", fuse="contrib", verify=False, opset=opset, cache=False)
    except AmpError as error:
        print(f"{path}: not converted: {' '.join(str(error).split())[:200]}", file=sys.stderr)
        return None
    assert report.program is not None, "nothing is written"
    after = _operators(report.program.to_onnx())
    fused = {kind: _count(after, kind) - _count(before, kind) for kind in KINDS}
    return {"model": f"{path.parent.name}/{path.name}", "written": written, "fused": fused}


def summary(rows: Sequence[Record]) -> str:
    """Return the sums of rows: of each kind how many are written out, and how many of them are fused."""
    lines = [f"{len(rows)} models"]
    for kind in KINDS:
        pairs = [(row["written"][kind], row["fused"][kind]) for row in rows]
        total, known = sum(count for count, _ in pairs), sum(min(pair) for pair in pairs)
        share = f"{known / total:.1%}" if total else "none"
        lines.append(f"{kind}: {known} of {total} ({share}), in {sum(count > 0 for count, _ in pairs)} models")
    return "\n".join(lines)


def _count(operators: collections.Counter[str], kind: str) -> int:
    return sum(operators[name] for name in OPERATORS[kind])


def _operators(proto: onnx.ModelProto) -> collections.Counter[str]:
    names: collections.Counter[str] = collections.Counter()
    waiting = [proto.graph]
    while waiting:
        for node in waiting.pop().node:
            names[node.op_type] += 1
            waiting += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return names


def _paths(models: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    for model in models:
        yield from sorted(model.rglob("*.onnx")) if model.is_dir() else [model]


if __name__ == "__main__":
    sys.exit(main())
