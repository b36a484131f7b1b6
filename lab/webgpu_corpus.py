#!/usr/bin/env python3
"""Convert the models of a corpus for WebGPU, and run the results on ONNX Runtime's WebGPU provider: are verdicts true?

    python lab/webgpu_corpus.py CORPUS                        # converts and runs; writes the rows and the page
    python lab/webgpu_corpus.py CORPUS --only magika nudenet  # these anew
    python lab/webgpu_corpus.py --page                        # only the page, of the rows that are there

`lab/fetch_corpus.py CORPUS` and `lab/export_corpus.py CORPUS` fill the folder. The provider needs no GPU
(`scripts/webgpu_oracle.py`). A result is compared with float32 on the CPU, on the samples that the verdict rests on;
a model that the provider does not run in float32 either is a row that says so. Once a release of onnxruntime-web.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import amp_transpiler as amp
from amp_transpiler.errors import AmpError
from amp_transpiler.verification.compare import compare_outputs
from webgpu_oracle import RELEASE, CannotRun, NotInstallable, Oracle, install

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = ROOT / "docs" / "benchmarks" / "webgpu" / f"{RELEASE}.jsonl"
PAGE = ROOT / "docs" / "evidence" / "webgpu.md"
WEB = "WebGpuExecutionProvider"
MOST = 2.0  # times the stated error that the provider may be off by
EXACT = 1e-4  # what float32 may be off by there, if that is more than what is stated
HEAD = """# Verdicts for WebGPU, held against the provider

Written by `python lab/webgpu_corpus.py CORPUS`. Each model was converted with `--target webgpu` at level auto; its
result ran on the WebGPU provider of onnxruntime-node {release}, whose shaders Mesa's lavapipe computes on a CPU
([how](../howto/web.md#without-a-gpu)). *Stated* is the error of the verdict, *provider* that of the provider's outputs
against float32 on the CPU, *float32 there* that of the source itself on the provider. A verdict holds if no value is
infinite, and the provider is off by at most twice of what is stated and what float32 is off by there. Where float32
itself is further off than what is stated, nothing is shown of the verdict: the provider is wrong, or the source is low.

| | |
| --- | --- |
| models | {models} |
| not run by the provider, or further off in float32 itself | {unknown} |
| that show something of a verdict | {ran} |
| with infinite values or NaN | {infinite} |
| verdicts that do not hold | {beyond} |
| stated / provider, median | {median} |

| model | float16 nodes | nodes on the CPU | verdict | stated | provider | float32 there | |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="models with this in their name")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if not options.page:
        if options.corpus is None:
            parser.error("give the folder CORPUS, or --page")
        try:
            with Oracle(install()) as oracle:
                measure(oracle, options.corpus, options.only)
        except NotInstallable as error:
            sys.exit(f"webgpu_corpus.py: {error}")
    rows = list(read_rows().values())
    PAGE.write_text(page(rows), encoding="utf-8")
    print(f"{PAGE}: {len(rows)} models")
    return 1 if any(is_false(row) for row in rows) else 0


def measure(oracle: Oracle, corpus: pathlib.Path, only: Iterable[str]) -> None:
    rows = read_rows()
    for name, model, inputs in models(corpus):
        if only and not any(part in name for part in only):
            continue
        rows[name] = row_of(oracle, name, model, inputs)
        print(json.dumps(rows[name]), flush=True)
        lines = (json.dumps(rows[key]) for key in sorted(rows))
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        ROWS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def models(corpus: pathlib.Path) -> Iterator[tuple[str, pathlib.Path, pathlib.Path]]:
    """Yield name, model and inputs of all models of a corpus that have inputs."""
    for model in sorted(corpus.glob("*/*/*.onnx")):
        beside = (model.with_suffix(".inputs.npz"), model.with_name("inputs.npz"))
        inputs = next((path for path in beside if path.is_file()), None)
        if inputs is not None and model.parts[-3] in ("shipped", "exported"):
            yield f"{model.parent.name}/{model.name}", model, inputs


def row_of(oracle: Oracle, name: str, model: pathlib.Path, inputs: pathlib.Path) -> dict[str, Any]:
    """Return what a model's conversion says of itself, and what the provider makes of it."""
    row: dict[str, Any] = {"model": name, "release": RELEASE}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="webgpu-corpus-") as scratch:
        result = pathlib.Path(scratch) / "result.onnx"
        try:
            report = amp.transpile(model, result, target="webgpu", inputs=inputs)
        except AmpError as error:
            return {**row, "refused": str(error).partition("(file:")[0][:200]}
        row |= {"verdict": report.verdict_word, "low": report.low_nodes, "nodes": report.nodes}
        row["stated"] = number(max((output.relative for output in report.outputs.values()), default=0.0))
        row["seconds"] = round(time.monotonic() - started, 1)
        if not result.is_file():
            result = model  # it is what was asked for already
        with np.load(inputs, allow_pickle=False) as file:
            feeds = dict(file)
        with amp.Session(model, amp.CPUPlace()) as session:  # low floats of a source are emulated
            names = [info.name for info in session.outputs]
            fed = {info.name: feeds[info.name] for info in session.inputs if info.name in feeds}
            reference = dict(zip(names, session.run(fed), strict=True))
        row["source"] = error_on(oracle, model, fed, reference)
        row["provider"] = error_on(oracle, result, fed, reference)
        try:
            placed = oracle.placement(result)
            row["on_cpu"] = sum(there.total for provider, there in placed.items() if provider != WEB)
        except CannotRun:
            row["on_cpu"] = None
    return row


def error_on(oracle: Oracle, model: pathlib.Path, feeds: Mapping[str, Any], reference: Mapping[str, Any]) -> Any:
    """Return the largest relative error of an output; a text where the provider does not run the model."""
    try:
        outputs = oracle.run(model, feeds)
        compared = compare_outputs([reference], [outputs]).values()
    except CannotRun as error:
        return " ".join(str(error).split())[:160]
    return number(max((math.inf if row.nonfinite else row.relative for row in compared), default=0.0))


def number(error: float) -> Any:
    """Return an error as JSON has it."""
    return float(f"{error:.3g}") if math.isfinite(error) else "infinite"


def read_rows() -> dict[str, dict[str, Any]]:
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.is_file() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def ran(row: Mapping[str, Any]) -> bool:
    """Whether the provider runs the source in float32: else nothing is known of the result."""
    return isinstance(row.get("source"), float | int)


def tells(row: Mapping[str, Any]) -> bool:
    """Whether the provider runs the source, and rightly in float32, so that its outputs tell of the verdict."""
    return ran(row) and row["source"] <= max(EXACT, row["stated"])


def is_false(row: Mapping[str, Any]) -> bool:
    """Whether the provider contradicts the verdict: beyond twice of what is stated and what float32 is off by."""
    if not tells(row):
        return False
    error = row["provider"]
    return not isinstance(error, float | int) or error > MOST * row["stated"] + row["source"]


def page(rows: list[dict[str, Any]]) -> str:
    run = [row for row in rows if tells(row)]
    shares = sorted(row["stated"] / row["provider"] for row in run if isinstance(row["provider"], float) and row["low"])
    head = HEAD.format(
        release=RELEASE,
        models=len(rows),
        unknown=len(rows) - len(run),
        ran=len(run),
        infinite=sum(row["provider"] == "infinite" for row in run),
        beyond=sum(map(is_false, run)),
        median=f"{shares[len(shares) // 2]:.2f}" if shares else "-",
    )
    return head + "".join(f"{line(row)}\n" for row in rows)


def line(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"| {row['model']} | - | - | refused | - | - | - | {row['refused']} |"
    remark = "contradicted" if is_false(row) else "" if ran(row) else f"not run: {row['source']}"
    if ran(row) and not tells(row):
        remark = "float32 itself is off there"
    errors = " | ".join(percent(row[key]) for key in ("stated", "provider", "source"))
    on_cpu = "-" if row["on_cpu"] is None else row["on_cpu"]
    nodes = f"{row['low']} of {row['nodes']}"
    return f"| {row['model']} | {nodes} | {on_cpu} | {row['verdict']} | {errors} | {remark.replace('|', '/')} |"


def percent(error: Any) -> str:
    return f"{100 * error:.3g} %" if isinstance(error, float | int) else "infinite" if error == "infinite" else "-"


if __name__ == "__main__":
    sys.exit(main())
