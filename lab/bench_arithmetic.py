#!/usr/bin/env python3
"""Hold what the table of a device's arithmetic predicts to the errors that a device has shown.

    python lab/bench_arithmetic.py SOURCES CONVERSIONS --json FILE            # half an hour on two cores
    python lab/bench_arithmetic.py SOURCES CONVERSIONS --json FILE --only silero
    python lab/bench_arithmetic.py SOURCES CONVERSIONS --json FILE --table    # the table's own noise alone: minutes
    python lab/bench_arithmetic.py --json FILE                                # the figures of a file
    python lab/bench_arithmetic.py --json FILE --write                        # and docs/benchmarks/arithmetic.md

SOURCES is `shipped/` of what `lab/fetch_corpus.py` fills. CONVERSIONS has the files that ran on the device, as the
commit of that run wrote them: PACKAGE__MODEL.auto.FORMAT.onnx. The device's errors are in `docs/benchmarks/gpu/`. What
FILE has already is not done again.

Each conversion runs emulated as it is, then rewritten into the device's kernels, in eight draws of their noise. The
noise of products and of recurrent layers is tried at several levels, so that it can be chosen without a family of
models and judged on that family.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from amp_transpiler.report.verdict import Verdict, judgement_of
from gpu import results
from programs import arithmetic_page
from programs.arithmetic_runs import measured

ROOT = pathlib.Path(__file__).resolve().parents[1]
RUN = ROOT / "docs" / "benchmarks" / "gpu" / "2026-11-26-h100.jsonl"
PAGE = ROOT / "docs" / "benchmarks" / "arithmetic.md"
Record: TypeAlias = dict[str, Any]


def device_rows() -> Iterator[Record]:
    """Yield what the device said of each model at level auto: model, format, the errors emulated then and measured."""
    for record in results.read(RUN).of("models"):
        if record["variant"] == "auto":
            yield {
                "model": record["name"],
                "dtype": record["dtype"],
                "verified": judgement_of(record["verdict"]).word is Verdict.VERIFIED,
                "emulated_then": record["emulated_error"],
                "device": record["error"],
            }


def conversion_name(model: str, dtype: str) -> str:
    """Return the name of the file that ran: `silero-vad/a.onnx` is `silero-vad__a.auto.float16.onnx`."""
    return f"{model.replace('/', '__').removesuffix('.onnx')}.auto.{dtype}.onnx"


def run(sources: pathlib.Path, conversions: pathlib.Path, path: pathlib.Path, only: str, *, grid: bool) -> None:
    """Add the records that a file lacks."""
    done = {(record["model"], record["dtype"]) for record in _read(path)}
    for row in device_rows():
        model, dtype = row["model"], row["dtype"]
        source, conversion = sources / model, conversions / conversion_name(model, dtype)
        if only not in model or (model, dtype) in done:
            continue
        absent = next((file for file in (source, conversion) if not file.exists()), None)
        if absent is not None:
            print(f"{model} {dtype}: left out, {absent} is not there", file=sys.stderr)
            continue
        record = row | measured(source, conversion, _feeds(source), grid=grid)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{model} {dtype}", file=sys.stderr)


def _feeds(source: pathlib.Path) -> dict[str, Any]:
    with np.load(source.with_name(f"{source.stem}.inputs.npz"), allow_pickle=True) as file:  # strings among them
        return {name: _plain(file[name]) for name in file.files}


def _plain(value: np.ndarray) -> Any:
    return value.item() if value.dtype == object and value.shape == () else value


def _read(path: pathlib.Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> int:
    """Run what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="?", type=pathlib.Path)
    parser.add_argument("conversions", nargs="?", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, required=True, help="a record a line, and what is not done again")
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--table", action="store_true", help="the noise of the table alone, no other levels")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/arithmetic.md")
    arguments = parser.parse_args()
    if (arguments.sources is None) != (arguments.conversions is None):
        parser.error("SOURCES needs CONVERSIONS: the files that ran on the device")
    if arguments.sources is not None:
        run(arguments.sources, arguments.conversions, arguments.json, arguments.only, grid=not arguments.table)
    records = _read(arguments.json)
    if not records:
        parser.error(f"{arguments.json} has no record yet")
    text = arithmetic_page.page(records)
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
