#!/usr/bin/env python3
"""Count what ONNX Runtime's transformers optimizer saves: launches and errors with and without `--optimize`.

    python lab/bench_optimize.py CORPUS                  # the table, as text: half an hour on two cores
    python lab/bench_optimize.py CORPUS --write          # also writes docs/benchmarks/optimized_launches.md
    python lab/bench_optimize.py CORPUS --only GPT-2

Launches are counted as `lab/bench_inference.py` counts them, which see. Errors are the largest relative ones of an
output against the model as given, rounding emulated.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import bench_inference

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "optimized_launches.md"
HEADER = ["model", "fp32", "auto", "with --optimize", "casts", "error of auto", "with --optimize"]
# Name -> the model in the corpus, besides the transformers of bench_inference.
MORE = {
    "MiniLM, opset 23": "exported/minilm_real/dynamo_op23.onnx",
    "T5-small decoder": "exported/t5_small_decoder/dynamo.onnx",
}
WITHOUT_ATTENTION = {
    *("ResNet-50", "MobileNetV3", "nudenet YOLO", "PP-OCR det", "smart-turn (Whisper encoder, QDQ int8)")
}


def models(corpus: pathlib.Path, only: list[str] | None) -> Iterator[tuple[str, pathlib.Path, pathlib.Path]]:
    """Yield name, model and inputs; say what is missing."""
    known = {name: path for name, path in bench_inference.MODELS.items() if name not in WITHOUT_ATTENTION}
    for name, relative in (known | MORE).items():
        model = corpus / relative
        beside = model.with_suffix(".inputs.npz"), model.with_name("inputs.npz")
        inputs = next((path for path in beside if path.is_file()), None)
        if only and name not in only:
            continue
        if inputs is None or not model.is_file():
            print(f"missing: {name} ({relative})", file=sys.stderr)
        else:
            yield name, model, inputs


def row(name: str, model: pathlib.Path, inputs: pathlib.Path) -> list[str]:
    """Return the cells of a model."""
    import amp_transpiler as amp

    launches, casts, errors = [bench_inference.count(model, inputs)["launches"]], [], []
    with tempfile.TemporaryDirectory() as folder:
        for optimize in (False, True):
            path = pathlib.Path(folder, f"{optimize}.onnx")
            report = amp.transpile(model, path, inputs=str(inputs), optimize=optimize, prefer="size")
            for warning in report.warnings:
                print(f"{name}: {warning}", file=sys.stderr)
            counted = bench_inference.count(path, inputs)
            launches.append(counted["launches"])
            casts.append(counted["kinds"].get("cast", 0))
            errors.append(max((output.relative for output in report.outputs.values()), default=0.0))
    return [name, *map(str, launches), str(casts[1]), *(f"{error:.2%}" for error in errors)]


def main() -> int:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    rows = []
    for name, model, inputs in models(options.corpus, options.only):
        rows.append(row(name, model, inputs))
        print(" | ".join(rows[-1]), flush=True)
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(f"\n{table}")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        begin = text.index(f"| {HEADER[0]} |")
        end = text.find("\n\n", begin)
        PAGE.write_text(text[:begin] + table + (text[end:] if end >= 0 else "\n"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
