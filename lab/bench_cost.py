#!/usr/bin/env python3
"""Hold the cost model to what ONNX Runtime does: launches that it predicts beside launches that are counted.

    python lab/bench_cost.py CORPUS                  # every model of the corpus: about twenty minutes on two cores
    python lab/bench_cost.py CORPUS --write          # also writes docs/benchmarks/cost.md
    python lab/bench_cost.py CORPUS --only bert      # models whose path holds a word
    python lab/bench_cost.py CORPUS --json FILE      # keeps all numbers; what is in the file is not counted again

Predicted: `amp_transpiler.cost`, from the file alone: what ONNX Runtime will fuse, fold and leave to the
host is worked out from its nodes. Counted: ONNX Runtime's CUDA provider on stand-ins (`lab/launches.py`), which
launches everything and computes nothing. Both at the sizes of the corpus' inputs. Forms: the model as it is, and what
`transpile` makes of it at levels auto and O2 in float16, without verification.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from bench_inference import MODELS, count

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "cost.md"
Form: TypeAlias = Literal["fp32", "auto", "O2"]
FORMS: tuple[Form, ...] = ("fp32", "auto", "O2")
DEVICE = "H100"
NOTABLE = 0.05  # errors above it are listed
Record = dict[str, Any]


# ---- one model ----
def measure(path: pathlib.Path, inputs: pathlib.Path | None, forms: Sequence[Form] = FORMS) -> dict[str, Record]:
    """Return launches, counted and predicted, and predicted milliseconds of each form of a model, or an error."""
    import amp_transpiler as amp

    records: dict[str, Record] = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in forms:
            file = path
            if form != "fp32":
                file = pathlib.Path(folder, f"{form}.onnx")
                try:
                    amp.transpile(path, file, level=form, verify=False, prefer="size")
                except amp.AmpError as error:
                    records[form] = {"error": " ".join(str(error).split())}
                    continue
            counted = count(file, inputs)
            if "error" in counted:
                records[form] = {"error": counted["error"]}
            else:
                records[form] = {"counted": counted["launches"], **predicted(file, inputs)}
    return records


def predicted(path: pathlib.Path, inputs: pathlib.Path | None) -> Record:
    """Return what the cost model says of a file at the sizes of given inputs."""
    from amp_transpiler.cost import find_device, predict
    from amp_transpiler.files.loading import load

    model = load(path).model
    dims = sized(model, shapes_of(inputs))
    prediction = predict(model, find_device(DEVICE), dims, fuse=True)
    return {"predicted": prediction.launches, "ms": prediction.milliseconds}


def shapes_of(inputs: pathlib.Path | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in a file."""
    import numpy as np

    if inputs is None:
        return {}
    with np.load(inputs, allow_pickle=False) as arrays:
        return {name: arrays[name].shape for name in arrays.files}


def sized(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the sizes of open dimensions at given shapes; a name is made up for those that have none."""
    import onnx_ir as ir

    dims: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.name not in shapes:
            continue
        sizes: list[int | str] = []
        old = list(value.shape) if value.shape is not None else [None] * len(shapes[value.name])
        for axis, (dim, size) in enumerate(zip(old, shapes[value.name], strict=True)):
            if isinstance(dim, int):
                sizes.append(dim)
                continue
            name = getattr(dim, "value", None) or f"{value.name}.{axis}"
            name = name if dims.setdefault(name, size) == size else f"{value.name}.{axis}"
            dims[name] = size
            sizes.append(name)
        value.shape = ir.Shape(sizes)
    return dims


# ---- all models ----
def corpus_models(
    corpus: pathlib.Path, only: Sequence[str] = ()
) -> Iterator[tuple[str, pathlib.Path, pathlib.Path | None]]:
    """Yield name, file and inputs of the models of a corpus, small ones first."""
    files = [*corpus.glob("exported/*/*.onnx"), *corpus.glob("shipped/*/*.onnx")]
    names = {corpus / relative: name for name, relative in MODELS.items()}
    for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
        relative = str(path.relative_to(corpus))
        if only and not any(word in relative for word in only):
            continue
        beside = path.with_suffix(".inputs.npz"), path.with_name("inputs.npz")
        yield names.get(path, relative), path, next((file for file in beside if file.is_file()), None)


def error_of(record: Mapping[str, float]) -> float:
    """Return the relative error of the predicted launches; of a model that launches nothing, their number."""
    return (record["predicted"] - record["counted"]) / max(1, record["counted"])


def summary(records: Sequence[Mapping[str, float]]) -> Record:
    """Return how well the predictions of one form agree with what was counted."""
    from scipy.stats import spearmanr

    errors = [abs(error_of(record)) for record in records]
    counted, predictions = ([record[name] for record in records] for name in ("counted", "predicted"))
    return {
        "models": len(records),
        "rank correlation": float(spearmanr(counted, predictions).statistic),
        "mean error": statistics.fmean(errors),
        "median error": statistics.median(errors),
        "largest error": max(errors),
        "exact": sum(error == 0 for error in errors),
    }


# ---- the page ----
def rows_of(table: Sequence[Sequence[str]]) -> str:
    """Return lines of a Markdown table; the first row is its header."""
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def model_table(everything: Mapping[str, Mapping[str, Record]]) -> str:
    """Return predicted and counted launches, and predicted milliseconds, of the models that have a name."""
    table = [["model", *(f"{form}: predicted / counted" for form in FORMS), f"ms on {DEVICE}: {' / '.join(FORMS)}"]]
    for name in MODELS:
        if name not in everything:
            continue
        forms = [everything[name].get(form, {"error": ""}) for form in FORMS]
        launches = ["-" if "error" in record else f"{record['predicted']} / {record['counted']}" for record in forms]
        times = " / ".join("-" if "error" in record else f"{record['ms']:.2f}" for record in forms)
        table.append([name, *launches, times])
    return rows_of(table)


def summary_table(everything: Mapping[str, Mapping[str, Record]]) -> str:
    """Return the agreement over all models, form by form."""
    table = [["form", "models", "exact", "rank correlation", "mean error", "median error", "largest error"]]
    for form in FORMS:
        sums = summary(
            [model_record[form] for model_record in everything.values() if "counted" in model_record.get(form, {})]
        )
        errors = [f"{100 * sums[f'{which} error']:.1f} %" for which in ("mean", "median", "largest")]
        table.append([form, str(sums["models"]), str(sums["exact"]), f"{sums['rank correlation']:.4f}", *errors])
    return rows_of(table)


def notable_table(everything: Mapping[str, Mapping[str, Record]]) -> str:
    """Return the models whose launches are predicted worst."""
    table = [["model", *FORMS]]
    for name, model_record in everything.items():
        errors = [error_of(model_record[form]) if "counted" in model_record.get(form, {}) else None for form in FORMS]
        if any(error is not None and abs(error) > NOTABLE for error in errors):
            table.append([name, *("-" if error is None else f"{100 * error:+.0f} %" for error in errors)])
    return rows_of(table)


TABLES = (("| model | fp32: predicted", model_table), ("| form |", summary_table), ("| model | fp32 |", notable_table))


def write_page(everything: Mapping[str, Mapping[str, Record]]) -> None:
    """Put the tables in the place of the page's own, which are found by their first cells."""
    text = PAGE.read_text(encoding="utf-8")
    for header, make in TABLES:
        begin = text.index(header)
        end = text.find("\n\n", begin)
        text = text[:begin] + make(everything) + (text[end:] if end >= 0 else "\n")
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    """Measure what is asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--json", type=pathlib.Path, help="write, and read, everything that was counted")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json and options.json.is_file() else {}
    everything: dict[str, dict[str, Record]] = {}
    for name, path, inputs in corpus_models(options.corpus, options.only):
        everything[name] = known.get(name) or measure(path, inputs)
        print(f"{name}: {everything[name]}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps({**known, **everything}, indent=1), encoding="utf-8")
    if not everything:
        parser.error("no model of the corpus fits")
    print("\n\n".join(make(everything) for _, make in TABLES))
    if options.write:
        write_page(everything)
    return 0


if __name__ == "__main__":
    sys.exit(main())
