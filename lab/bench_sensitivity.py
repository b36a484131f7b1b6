#!/usr/bin/env python3
"""Compare predicted sensitivities with the truth: the output's error when a single node is made low, emulated.

    python lab/bench_sensitivity.py CORPUS                    # the table, as text: some minutes on two cores
    python lab/bench_sensitivity.py CORPUS --write            # also writes docs/benchmarks/sensitivity.md
    python lab/bench_sensitivity.py CORPUS --only MiniLM --dtype bfloat16
    python lab/bench_sensitivity.py --model MODEL.onnx [--inputs INPUTS.npz]

CORPUS is what `lab/fetch_corpus.py` and `lab/export_corpus.py` fill; a model that is missing there is left out,
and named. The truth comes from one program with a switch: each node has its low twin beside it, and an input says which
one of them is in force. Prediction and truth are taken on the same sample.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.remote import open_plain
from amp_transpiler.conversion import prepare
from amp_transpiler.files.loading import load
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.verification.accuracy import make_reference
from amp_transpiler.verification.fixed_sample import SettledProgram, settle
from amp_transpiler.verification.low_twins import Twins
from amp_transpiler.verification.sensitivity import low_forms, measure_sensitivity

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "sensitivity.md"

# Name -> kind, and the model in the corpus.
MODELS = {
    "MobileNetV3": ("CNN", "exported/timm_mobilenetv3_large/dynamo.onnx"),
    "ResNet-50": ("CNN", "exported/resnet50/torchscript.onnx"),
    "MiniLM": ("transformer encoder", "exported/minilm_real/dynamo.onnx"),
    "GPT-2": ("decoder", "exported/gpt2_small/dynamo.onnx"),
    "Llama, 2 layers": ("decoder", "exported/llama_2l/dynamo.onnx"),
    "wav2vec 2.0, 2 layers": ("speech", "exported/wav2vec2_base_2l/dynamo.onnx"),
    "PP-OCR rec": ("OCR", "shipped/rapidocr/PP-OCRv6_rec_small.onnx"),
    "PP-OCR det": ("text detector", "shipped/rapidocr/PP-OCRv6_det_small.onnx"),
    "nudenet YOLO": ("detector", "shipped/nudenet/320n.onnx"),
    "ddddocr det": ("detector", "shipped/ddddocr/common_det.onnx"),
    "ddddocr OCR": ("OCR, dynamically quantized", "shipped/ddddocr/common_old.onnx"),
    "silero VAD": ("speech, If and LSTM", "shipped/silero-vad/silero_vad.onnx"),
    "basic-pitch": ("music, CNN", "shipped/basic-pitch/nmp.onnx"),
}
MOST_NODES = 100  # whose truth is found; of more, some at equal distances


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Predictions and truths of one model, over the nodes whose true error is not zero.

    Attributes:
        predicted: node -> relative error of the worst output.
        true: likewise, by emulation.
        seconds: what prediction and truth took.
        estimated: how many of the nodes are estimates.
    """

    predicted: Mapping[str, float]
    true: Mapping[str, float]
    seconds: tuple[float, float]
    estimated: int

    @property
    def spearman(self) -> float:
        """The rank correlation."""
        names = list(self.true)
        return spearman([self.predicted.get(name, 0.0) for name in names], [self.true[name] for name in names])

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Predicted over true: the tenth, fiftieth and ninetieth percentile of those that are finite."""
        every = [self.predicted.get(name, 0.0) / true for name, true in self.true.items()]
        ratios = [ratio for ratio in every if np.isfinite(ratio)]
        tenth, half, most = np.percentile(ratios, [10, 50, 90]) if ratios else (0.0, 0.0, 0.0)
        return float(tenth), float(half), float(most)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation; equal numbers share the mean of their ranks."""
    a, b = _ranks(first), _ranks(second)
    if len(a) < 2 or a.std() == 0.0 or b.std() == 0.0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(numbers: Sequence[float]) -> np.ndarray:
    values, places, counts = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    del values
    last = np.cumsum(counts)
    mean: np.ndarray = (last - (counts - 1) / 2.0)[places]
    return mean


def true_errors(
    settled: SettledProgram, low: LowFormat, forms: Mapping[str, LowForm], feeds: Mapping[str, Any]
) -> dict[str, float]:
    """Return the relative error of the worst output when one node alone is low, for at most `MOST_NODES` nodes."""
    program = settled.program.clone()
    targets = list(dict.fromkeys(name for names in settled.targets.values() for name in names))
    values = values_by_name(program.model.graph)
    program.model.graph.outputs[:] = [values[name] for name in targets]
    chosen = _switchable(program, forms)
    switch = _add_switch(program, low, forms, chosen)
    errors: dict[str, float] = {}
    with open_plain(program) as session:
        fed = {info.name: feeds[info.name] for info in session.inputs if info.name in feeds}

        def run(number: int) -> dict[str, np.ndarray]:
            arrays = session.run({**fed, switch: np.array(number, np.int64)})
            return dict(zip((info.name for info in session.outputs), arrays, strict=True))

        exact = run(-1)
        names = dict(zip(targets, exact, strict=True))
        for number, node in enumerate(chosen):
            low_values = run(number)
            every = (_relative(exact, low_values, [names[n] for n in of]) for of in settled.targets.values())
            errors[str(node.name)] = max(every, default=0.0)
    return {name: error for name, error in errors.items() if error > 0.0}


def _switchable(program: Program, forms: Mapping[str, LowForm]) -> list[ir.Node]:
    nodes = [node for node in program.model.graph if str(node.name) in forms and not has_bodies(node)]
    step = max(1, -(-len(nodes) // MOST_NODES))
    return nodes[::step]


def _add_switch(program: Program, low: LowFormat, forms: Mapping[str, LowForm], nodes: Sequence[ir.Node]) -> str:
    """Let the readers of each node read its low twin where the switch has the node's number; return the input."""
    graph = program.model.graph
    builder = GraphBuilder(program.model)
    targets = list(graph.outputs)
    switch = ir.Value(name=builder.names.fresh("switch"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(()))
    graph.inputs.append(switch)
    twins = Twins(builder, low, forms)
    for number, node in enumerate(nodes):
        uses = {value: list(value.uses()) for value in node.outputs}
        _, twin_result = twins.of(node)
        is_low = builder.compare("Equal", switch, number)
        for value, twin in zip(node.outputs, twin_result, strict=True):
            if not is_float32(value) or twin is value or (not uses[value] and value not in targets):
                continue
            chosen = builder.where(is_low, twin, value)
            for reader, index in uses[value]:
                reader.replace_input_with(index, chosen)
            targets = [chosen if output is value else output for output in targets]
    graph.outputs[:] = targets
    graph.sort()
    program.touch()
    return str(switch.name)


def _relative(exact: Mapping[str, np.ndarray], low_values: Mapping[str, np.ndarray], names: Sequence[str]) -> float:
    """Return the relative error over some values together, without what is not finite in float32."""
    difference = norm = 0.0
    for name in names:
        reference = exact[name].astype(np.float64)
        finite = np.isfinite(reference)
        difference += float(np.square(low_values[name].astype(np.float64)[finite] - reference[finite]).sum())
        norm += float(np.square(reference[finite]).sum())
    return float(np.sqrt(difference / norm)) if norm else 0.0


def examine(path: pathlib.Path, dtype: str, inputs: str | None = None) -> Finding:
    """Predict and measure on one sample, made up unless it is given."""
    source = load(path)
    policy = choose_policy(Request(dtype=dtype))
    program = source.clone()
    prepare(program, policy, RangeFaults(policy.low))
    feeds = make_reference(source, program, inputs).samples[0]
    forms = low_forms(program.model, policy.target, policy.low)
    start = time.perf_counter()
    sensitivity = measure_sensitivity(program, policy.low, forms, [feeds])
    middle = time.perf_counter()
    true = true_errors(settle(program, feeds), policy.low, forms, feeds)
    seconds = (middle - start, time.perf_counter() - middle)
    alone = [contributions.alone for contributions in sensitivity.by_output.values()]
    predicted = {name: max(errors.get(name, 0.0) for errors in alone) ** 0.5 for name in true}
    return Finding(predicted, true, seconds, sum(name in sensitivity.estimated for name in true))


HEAD = ("model", "kind", "nodes", "Spearman", "predicted / true: 10 %", "50 %", "90 %", "predict, s", "truth, s")


def row(name: str, kind: str, found: Finding) -> list[str]:
    """Return the table's row."""
    ratios = [f"{ratio:.2f}" for ratio in found.ratio]
    seconds = [f"{second:.1f}" for second in found.seconds]
    return [name, kind, str(len(found.true)), f"{found.spearman:.3f}", *ratios, *seconds]


def page(rows: Sequence[Sequence[str]], dtype: str, missing: Sequence[str]) -> str:
    """Return the page."""
    lines = [" | ".join(cells) for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    left_out = f"\nNot on this machine, so left out: {', '.join(missing)}.\n" if missing else ""
    return INTRODUCTION.format(dtype=dtype) + "\n".join(f"| {line} |" for line in lines) + "\n" + left_out


INTRODUCTION = """# Sensitivities, predicted and true

Written by `lab/bench_sensitivity.py`. For each node: the relative error of the worst output when this node alone is
{dtype}, its inputs cast, as one reverse sweep predicts it (`verification/sensitivity.py`) and as emulation shows it, on
the same made-up sample. Nodes are those whose true error is not zero, of at most 100 at equal distances in a model.

Models whose activations are quantized dynamically are hard: a rounding error is felt only where it moves a number by a
step, and a few quantizations further on by steps everywhere. Gains are estimates there, and what overflows counts as
infinite although a quantization may clip it.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, help="examine this model instead")
    parser.add_argument("--inputs", help="its inputs, else made up")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--worst", type=int, default=0, help="print this many nodes whose ranks differ most")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    if options.corpus is None and options.model is None:
        parser.error("give a corpus or --model")
    chosen = (
        {name: (MODELS[name][0], options.corpus / MODELS[name][1]) for name in options.only} if options.corpus else {}
    )
    if options.model:
        chosen = {options.model.stem: ("", options.model)}
    rows, missing = [], []
    print(" | ".join(HEAD))
    for name, (kind, path) in chosen.items():
        if not path.exists():
            missing.append(name)
            continue
        finding = examine(path, options.dtype, options.inputs)
        rows.append(row(name, kind, finding))
        print(" | ".join(rows[-1]), flush=True)
        for node, ours, truth in _furthest(finding, options.worst):
            print(f"    {node}: predicted {ours:.3g}, true {truth:.3g}")
    if missing:
        print(f"left out, not there: {', '.join(missing)}", file=sys.stderr)
    if options.write:
        PAGE.write_text(page(rows, options.dtype, missing), encoding="utf-8")
    return 0


def _furthest(finding: Finding, count: int) -> list[tuple[str, float, float]]:
    names = list(finding.true)
    ours = _ranks([finding.predicted[name] for name in names])
    theirs = _ranks([finding.true[name] for name in names])
    order = np.argsort(-np.abs(ours - theirs))[:count]
    return [(names[i], finding.predicted[names[i]], finding.true[names[i]]) for i in order]


if __name__ == "__main__":
    sys.exit(main())
