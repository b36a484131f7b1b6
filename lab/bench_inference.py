#!/usr/bin/env python3
"""Count what inference would ask of a GPU, without one: fp32, ours, and ONNX Runtime's float16 converter.

    python lab/bench_inference.py CORPUS                      # the table, as text: a quarter of an hour
    python lab/bench_inference.py CORPUS --write              # also writes docs/benchmarks/inference_launches.md
    python lab/bench_inference.py CORPUS --only GPT-2 MiniLM
    python lab/bench_inference.py --model MODEL.onnx --inputs INPUTS.npz

Launches are those of ONNX Runtime's CUDA provider on stand-ins for CUDA's libraries (`lab/launches.py`: Linux on
x86-64, gcc, binutils and the GPU wheel). CORPUS is what `lab/fetch_corpus.py` and `lab/export_corpus.py` fill;
a model that is missing there is left out, and named. Ours is converted, compared with fp32 and repaired as by default.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "inference_launches.md"
CANNOT_TELL = 3  # the exit status of launches.py where this machine cannot count

# Name -> the model in the corpus.
MODELS = {
    "BERT-base": "exported/bert_base_12l/torchscript.onnx",
    "BERT-base, newer exporter": "exported/bert_base_12l/dynamo.onnx",
    "BERT, 1 layer": "exported/bert_base_1l/torchscript.onnx",
    "GPT-2": "exported/gpt2_small/dynamo.onnx",
    "MiniLM": "exported/minilm_real/dynamo.onnx",
    "MiniLM, older exporter": "exported/minilm_real/torchscript.onnx",
    "rxnmap": "shipped/chython-rxnmap/rxnmap.onnx",
    "Llama, 2 layers": "exported/llama_2l/dynamo.onnx",
    "Llama, 2 layers, older exporter": "exported/llama_2l/torchscript.onnx",
    "T5-small encoder": "exported/t5_small_encoder/torchscript.onnx",
    "ViT-base": "exported/vit_base/dynamo.onnx",
    "smart-turn (Whisper encoder, QDQ int8)": "shipped/pipecat-ai/smart-turn-v3.2-cpu.onnx",
    "ResNet-50": "exported/resnet50/torchscript.onnx",
    "MobileNetV3": "exported/timm_mobilenetv3_large/dynamo.onnx",
    "wav2vec 2, 2 layers": "exported/wav2vec2_base_2l/torchscript.onnx",
    "nudenet YOLO": "shipped/nudenet/320n.onnx",
    "PP-OCR det": "shipped/rapidocr/PP-OCRv6_det_small.onnx",
    "PP-OCR rec": "shipped/rapidocr/PP-OCRv6_rec_small.onnx",
}
FORMS = ("fp32", "auto", "O2", "converter")
# Fused operators that stand for the same: a later fusion may put one in the place of another.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "layer normalisation": ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"),
    "RMS normalisation": ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
    "GELU": ("Gelu", "BiasGelu", "FastGelu"),
    "SiLU": ("QuickGelu",),
    "attention": ("Attention", "MultiHeadAttention", "GroupQueryAttention"),
    "softmax of a sum": ("BiasSoftmax",),
    "product": ("FusedMatMul", "FusedGemm", "GemmFastGelu"),
    "convolution": ("FusedConv",),
}
WITHIN_ATTENTION = {"product": 2, "softmax of a sum": 1}  # what an operator of attention computes
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that a form may launch.

    Attributes:
        converter: launches of what ONNX Runtime's converter makes; None where that is no valid model.
        fp32: launches of fp32, and one for each input and output that may be cast.
    """

    converter: int | None
    fp32: int

    def over(self, launches: int) -> int:
        """How many launches are above both limits, or above the one that there is."""
        limit = self.fp32 if self.converter is None else min(self.converter, self.fp32)
        return max(0, launches - limit)


# ---- forms ----
def write_forms(model: pathlib.Path, folder: pathlib.Path, inputs: pathlib.Path | None) -> dict[str, pathlib.Path]:
    """Write each form of a model into a folder; those that cannot be made are missing."""
    import amp_transpiler as amp

    forms = {"fp32": model}
    inputs_path = None if inputs is None else str(inputs)
    for level in ("auto", "O2"):
        forms[level] = folder / f"{level}.onnx"
        # At O2 the lists decide, whatever a comparison finds; what it finds is no part of this count.
        amp.transpile(model, forms[level], level=level, inputs=inputs_path, prefer="size", verify=level == "auto")
    forms["converter"] = folder / "converter.onnx"
    program = "import sys; from bench_inference import convert_by_onnx_runtime as c; c(*sys.argv[1:])"
    done = _run([sys.executable, "-c", program, str(model), str(forms["converter"])])
    if done.returncode:
        del forms["converter"]
    return forms


def convert_by_onnx_runtime(source: str, target: str) -> None:
    """Write what ONNX Runtime's own float16 converter makes of a model; inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(convert_float_to_float16(onnx.load(source), keep_io_types=True))
    converted.topological_sort()
    onnx.save(converted.model, target)


# ---- counts ----
def count(model: pathlib.Path, inputs: pathlib.Path | None) -> Record:
    """Count one run of a form in a child; `error` says why that was not possible."""
    feeds = [] if inputs is None else ["--feeds", str(inputs)]
    done = _run([sys.executable, str(LAB / "launches.py"), "count", "--json", *feeds, str(model)])
    if done.returncode == CANNOT_TELL:
        raise SystemExit(done.stderr.strip())
    record: Record = json.loads(done.stdout.splitlines()[0])
    return record


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(LAB.parent), str(LAB)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def measure(model: pathlib.Path, inputs: pathlib.Path | None) -> dict[str, Record]:
    """Count every form of a model."""
    with tempfile.TemporaryDirectory() as folder:
        forms = write_forms(model, pathlib.Path(folder), inputs)
        return {form: count(path, inputs) for form, path in forms.items()}


def lost(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the fused operators of `before` that `after` lacks, by family."""
    missing: collections.Counter[str] = collections.Counter()
    for family, operators in FAMILIES.items():
        missing[family] = sum(before.get(op, 0) for op in operators) - sum(after.get(op, 0) for op in operators)
    attentions = max(0, -missing["attention"])
    for family, number in WITHIN_ATTENTION.items():
        missing[family] -= number * attentions
    return {family: number for family, number in missing.items() if number > 0}


def limits_of(model: pathlib.Path, counts: Mapping[str, Record]) -> Limits:
    """Return what a form of the model may launch."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    weights = {item.name for item in graph.initializer}
    ends = [*(item for item in graph.input if item.name not in weights), *graph.output]
    floats = sum(item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for item in ends)
    return Limits(counts.get("converter", {}).get("launches"), counts["fp32"]["launches"] + floats)


# ---- the table ----
def row(name: str, model: pathlib.Path, counts: Mapping[str, Record]) -> list[str]:
    """Return the cells of a model: launches with casts in brackets, fused operators lost, launches above the limits."""
    limits = limits_of(model, counts)
    cells = [name]
    for form in FORMS:
        form_counts = counts.get(form, {"error": "cannot be made"})
        cells.append(
            "invalid"
            if "error" in form_counts
            else f"{form_counts['launches']} ({form_counts['kinds'].get('cast', 0)})"
        )
    for form in ("auto", "O2"):
        missing = lost(counts["fp32"]["fused"], counts[form]["fused"])
        cells.append(", ".join(f"{number} {family}" for family, number in missing.items()) or "none")
    cells.append(" / ".join(str(limits.over(counts[form]["launches"])) for form in ("auto", "O2")))
    return cells


HEADER = ["model", "fp32", "auto", "O2", "converter", "lost by auto", "lost by O2", "over, auto / O2"]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the table."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(table: str) -> None:
    """Put the table in the place of the page's own, which begins with the same header."""
    text = PAGE.read_text(encoding="utf-8")
    begin = text.index(table.partition("\n")[0])
    end = text.find("\n\n", begin)
    PAGE.write_text(text[:begin] + table + (text[end:] if end >= 0 else "\n"), encoding="utf-8")


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, pathlib.Path, pathlib.Path | None]]:
    """Yield name, model and inputs of what is asked for; say what is missing."""
    if options.model:
        yield options.model.stem, options.model, options.inputs
        return
    for name, relative in MODELS.items():
        if options.only and name not in options.only:
            continue
        model = options.corpus / relative
        if not model.is_file():
            print(f"missing: {name} ({relative})", file=sys.stderr)
            continue
        beside = model.with_suffix(".inputs.npz"), model.with_name("inputs.npz")
        yield name, model, next((path for path in beside if path.is_file()), None)


def main() -> int:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("corpus", nargs="?", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="NAME")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--inputs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="write everything that was counted")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    if (options.corpus is None) is (options.model is None):
        parser.error("give the folder of the corpus, or --model")
    rows, everything = [], {}
    for name, model, inputs in chosen(options):
        everything[name] = measure(model, inputs)
        rows.append(row(name, model, everything[name]))
        print(" | ".join(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")
    print("", markdown(rows), sep="\n\n")
    if options.write:
        write_page(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
