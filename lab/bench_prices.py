#!/usr/bin/env python3
"""Hold the price list to a device: predicted times of the programs that it ran beside what they took.

    python lab/bench_prices.py                 # a table; needs neither a GPU nor PyTorch
    python lab/bench_prices.py --write         # also writes docs/benchmarks/prices.md
    python lab/bench_prices.py --kernels NAME  # one program's time by kernel
    python lab/bench_prices.py --dump NAME GRAPH...   # the list of a program, of the graphs that ONNX Runtime made

The lists in `docs/benchmarks/prices/` have the nodes of each program as ONNX Runtime's CUDA provider optimized it, at
the commit that was measured; the times are those of `docs/benchmarks/gpu/`. The exit status is 1 where a prediction is
off by more than its limit, or a pair of forms is in the wrong order.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.cost import DEVICES, NodeCost, predicted
from amp_transpiler.cost.work import is_measured, seconds_of
from amp_transpiler.targets.price_list import price_list
from priced_pairs import Pair, pairs
from priced_programs import LISTS, costs_of_lines, lines_of, parse_lines

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmarks" / "gpu"
PAGE = ROOT / "docs" / "benchmarks" / "prices.md"
H100 = DEVICES["H100"]
FIT, HELD_OUT = 1.3, 1.5  # times that a prediction may be off, of programs that prices come from, and of others
Use: TypeAlias = Literal["", "held out", "second run", "third run"]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run on a device.

    Attributes:
        file: its records, in `docs/benchmarks/gpu/`.
        prefix: of the lists of its programs.
    """

    file: str
    prefix: str = ""


FIRST = Run("2026-11-26-h100.jsonl")
SECOND = Run("2026-11-26-h100-2.jsonl", "run2.")
THIRD = Run("2026-11-27-h100.jsonl", "run3.")
RUNS = (FIRST, SECOND, THIRD)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that was measured.

    Attributes:
        run: where.
        stage, name, variant: of its record.
        form: level and format, `O2.float16`: the second part of its list's name.
        use: empty: prices come from it; `held out`: none does, and nobody looked at its time before the list was
            frozen; `second run`: of another commit, see the page.
        cuda_graph: whether a CUDA graph replayed it.
    """

    run: Run = FIRST
    stage: str
    name: str
    variant: str
    form: str
    use: Use = ""
    cuda_graph: bool = False

    @property
    def list(self) -> str:
        """The name of the list of its nodes."""
        return f"{self.run.prefix}{self.name.split('.')[0]}.{self.form}"

    @property
    def title(self) -> str:
        """The name of its row."""
        replayed = ", CUDA graph" if self.cuda_graph and self.variant != "amp.Session" and "." in self.form else ""
        return f"{self.name.split('.')[0]}, {self.form.replace('.', ' ')}{replayed}"


def _step(name: str, form: str, variant: str, use: Use = "", run: Run = FIRST) -> Program:
    captured = variant.endswith("CUDA graph")
    level, _, dtype = form.partition(".")
    record = f"{name}.{level}{'+' if captured else ''}.{dtype}"
    return Program(run=run, stage="training", name=record, variant=variant, form=form, use=use, cuda_graph=captured)


def _model(name: str, form: str, use: Use = "", run: Run = FIRST) -> Program:
    return Program(run=run, stage="inference", name=name, variant=form, form=form, use=use, cuda_graph=True)


def _session(name: str, form: str) -> Program:
    """A model of the second run, of which the time of `Session` alone is known, without its kernels."""
    return Program(
        run=SECOND, stage="options", name=name, variant="amp.Session", form=form, use="second run", cuda_graph=True
    )


def _step_of_options(variant: str) -> Program:
    """A step of the second run, of which the time alone is known."""
    return Program(
        run=SECOND,
        stage="options",
        name="resnet18.O2.float16",
        variant=variant,
        form="O2.float16",
        use="second run",
        cuda_graph=variant == "cuda_graph",
    )


GRAPH = "O2, CUDA graph"
PROGRAMS = (
    _step("transformer", "fp32.float32", "fp32"),
    _step("transformer", "O1.float16", "O1"),
    _step("transformer", "O2.float16", "O2"),
    _step("transformer", "O2.float16", GRAPH),
    _step("transformer", "O2.bfloat16", "O2", "held out"),
    _step("raf", "fp32.float32", "fp32"),
    _step("raf", "raf.float16", "raf"),
    _step("raf", "O2.float16", "O2", "held out"),
    _step("raf", "O2.float16", GRAPH, "held out"),
    _step("resnet50", "fp32.float32", "fp32"),
    _step("resnet50", "O1.float16", "O1"),
    _step("resnet50", "O2.float16", "O2"),
    _step("resnet50", "O2.float16", GRAPH),
    _model("bert_base_b1", "fp32"),
    _model("bert_base_b1", "auto"),
    _model("gpt2_prefill", "fp32"),
    _model("gpt2_prefill", "auto"),
    _model("bert_base_b8", "fp32", "held out"),
    _model("bert_base_b8", "auto", "held out"),
    _step("rocm", "fp32.float32", "fp32", "second run", SECOND),
    _step("rocm", "torch.float16", "torch", "second run", SECOND),
    _step_of_options("ours"),
    _step_of_options("cuda_graph"),
    _session("resnet50", "fp32"),
    _session("resnet50", "auto"),
    _session("pointwise", "fp32"),
    _session("pointwise", "auto"),
    _session("vit_base", "fp32"),
    _session("vit_base", "auto"),
    *(
        _model(name, form, "third run", THIRD)
        for name in ("vit_base", "whisper_encoder", "t5_encoder", "llama_prefill", "convnext", "mobilenet")
        for form in ("fp32", "auto")
    ),
)
FIRST_RUN = tuple(program for program in PROGRAMS if program.run is FIRST)
LEFT_OUT = (
    (
        "rocm, fp32, first run",
        "ran with `fuse_conv_bias=1`: wrong biases from the second step on. The second run has it",
    ),
    ("rocm, every low level, first run", "failed: cuDNN has no engine for the fused bias in 16 bits"),
    ("rocm, O2, second run", "its loss is NaN or 0 there"),
    ("resnet18, first run", "failed: no plan of cuDNN for a weight's gradient, with the search HEURISTIC"),
    ("resnet50, vit_base and pointwise, fp32, first run", "wrong numbers with `fuse_conv_bias=1`"),
    ("resnet50, vit_base and pointwise, low, first run", "failed for the same reason"),
    ("transformer, raf and bert_base_b8, second run", "programs of the first run, at another commit"),
    ("PyTorch's rows", "other kernels; its float32 products are evidence of products without TF32"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A program with both times.

    Attributes:
        program: which.
        busy, step: predicted milliseconds.
        measured_busy, measured_step: what the device took; busy is None where its kernels were not recorded.
        unmeasured: share of the predicted busy time that no measured price covers.
    """

    program: Program
    busy: float
    step: float
    measured_busy: float | None
    measured_step: float
    unmeasured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured busy time; of the step where that is all that is known."""
        return self.step / self.measured_step if self.measured_busy is None else self.busy / self.measured_busy

    @property
    def limit(self) -> float:
        """How many times it may be off."""
        return HELD_OUT if self.program.use else FIT

    @property
    def holds(self) -> bool:
        """Whether the ratio is within the limit."""
        return 1 / self.limit <= self.ratio <= self.limit


def rows(programs: Sequence[Program] = PROGRAMS) -> list[Row]:
    """Return predicted and measured times of programs."""
    records = {run: list(map(json.loads, (RECORDS / run.file).read_text("utf-8").splitlines())) for run in RUNS}
    return [_row(program, _record(program, records[program.run])) for program in programs]


def _record(program: Program, records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    for record in records:
        named = (record.get("stage"), record.get("name"), record.get("variant"))
        if named == (program.stage, program.name, program.variant) and _has_form(record, program):
            return record
    raise SystemExit(f"{program.run.file} has no record of {program.stage} {program.name}, {program.variant}")


def _has_form(record: dict[str, Any], program: Program) -> bool:
    return program.stage != "options" or str(record.get("dtype")).startswith((f"{program.form}.", "float16"))


def _row(program: Program, record: dict[str, Any]) -> Row:
    costs = [cost for count, cost in costs_of(program) for _ in range(count)]
    run = predicted(costs, H100, cuda_graph=program.cuda_graph)
    copies = sum(milliseconds for *_, milliseconds in record.get("copies", ()))
    busy = record["busy_ms"] + copies if "busy_ms" in record else None
    return Row(program, run.busy_milliseconds, run.milliseconds, busy, record["ms"], run.unmeasured)


def costs_of(program: Program) -> list[tuple[int, NodeCost]]:
    """Return how often each node of a program runs, with its cost."""
    return costs_of_lines(parse_lines((LISTS / f"{program.list}.txt").read_text("utf-8").splitlines()))


def rank_correlation(times: Iterable[tuple[float, float]]) -> float:
    """Return Spearman's correlation of two orders."""
    import scipy.stats  # a second, which tests of the tables need not pay

    first, second = zip(*times, strict=True)
    return float(scipy.stats.spearmanr(first, second).statistic)


def correlations(table: Sequence[Row]) -> tuple[float, float]:
    """Return the rank correlations of busy times and of steps, of programs that have both."""
    both = [row for row in table if row.measured_busy is not None]
    busy = rank_correlation((row.busy, row.measured_busy or 0.0) for row in both)
    return busy, rank_correlation((row.step, row.measured_step) for row in table)


# ---- what is printed ----
def page(table: Sequence[Row], ordered: Sequence[Pair]) -> str:
    """Return the page."""
    listed = price_list()
    marks = collections.Counter(row.mark for row in listed.rows.values())
    busy, step = correlations(table)
    first = [row for row in table if row.program.run is FIRST]
    second, third = ([row for row in table if row.program.run is run] for run in (SECOND, THIRD))
    return f"""# Predicted times against a device

`PYTHONPATH=. python lab/bench_prices.py --write` writes this page, without a GPU. [The price
list](../concepts/prices.md) has what kernels take on an {listed.device} with ONNX Runtime {listed.release}:
{marks["measured"]} rows read out of measured programs, {marks["derived"]} that follow from those, {marks["inferred"]}
inferred. Here it predicts the programs that [a device ran](gpu.md), from the graphs that ONNX Runtime made of them at
the commits that were measured, 4ba23a0, bf3177d and 6538702 (`docs/benchmarks/prices/`).

*busy*: what kernels and copies take. *step*: a run with the host's part, in a CUDA graph for models. *ratio*: predicted
over measured busy time. *by a rule*: the share of the predicted time that no measured row covers.

{_table(first)}

Busy time is off by at most {_worst(first, ""):.2f} times, of programs that are held out by
{_worst(first, "held out"):.2f}. Prices were set from the programs without a mark: that those are right shows that a few
dozen prices explain them all, not what an unknown program will do. Held out: no price comes from them, but for the
elements of SkipLayerNormalization. The list was complete before they were predicted (off by at most 1.07 times then);
what changed since came from the second run, and from products, which were set again when their streaming was counted.
They share most kernels with the others.

The second run timed programs at a later commit, with other options. From its rocm come the price of a convolution's
bias, corrections of BatchNormalization, Relu and Where in 16 bits, and that a convolution of one tap changes no layout,
which its pointwise network shows too; from its other times nothing. Kernels that ViT, ResNet-50 and rocm took in the
first run are evidence in the list, though what they computed there was wrong. Nobody looked at ResNet-18's time before
the list was complete. Of it and of the models the time of a step or run alone was recorded, with the copy of the
pictures, so the ratio is that:

{_table(second)}

Off by at most {_worst(second, "second run"):.2f} times.

The third run timed ViT with its kernels, and five networks that nobody had timed when the list was frozen; none of its
times changed a price:

{_table(third)}

Off by at most {_worst(third, "third run"):.2f} times. Rank correlation of the {len(table)} programs: busy
{busy:.3f}, step {step:.3f}.

Left out:

{_list(f"{name}: {why}." for name, why in LEFT_OUT)}

## Forms of one computation

Predicted microseconds of two forms, the faster one first. The device's times order every pair so; *from* says which of
them were measured, and which follow from measured kernels.

| faster | slower | predicted us | from |
| --- | --- | --- | --- |
{_lines(_pair_cells(pair) for pair in ordered)}
"""


def _table(table: Iterable[Row]) -> str:
    head = (
        "| program | busy, predicted ms | busy, measured ms | ratio | step, predicted ms | step, measured ms "
        "| by a rule | |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return head + _lines(map(_cells, table))


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts)


def _list(texts: Iterable[str]) -> str:
    return _lines(f"- {text}" for text in texts)


def _cells(row: Row) -> str:
    measured = "" if row.measured_busy is None else f"{row.measured_busy:.3f}"
    use = row.program.use if row.program.use == "held out" else ""
    return (
        f"| {row.program.title} | {row.busy:.3f} | {measured} | {row.ratio:.2f} | {row.step:.3f} "
        f"| {row.measured_step:.3f} | {row.unmeasured:.1%} | {use} |"
    )


def _pair_cells(pair: Pair) -> str:
    return f"| {pair.faster} | {pair.slower} | {pair.times[0]:.0f}, {pair.times[1]:.0f} | {pair.evidence} |"


def _worst(table: Iterable[Row], use: Use) -> float:
    return max(math.exp(abs(math.log(row.ratio))) for row in table if row.program.use == use)


def _kernels(name: str) -> None:
    """Print the time of one program by kernel."""
    seconds: dict[tuple[str, str, str], float] = collections.defaultdict(float)
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    program = next((program for program in PROGRAMS if program.list == name), None)
    if program is None:
        raise SystemExit(f"no program {name!r}: one of {', '.join(program.list for program in PROGRAMS)}")
    for count, cost in costs_of(program):
        for work in cost.kernels:
            key = (work.kernel, work.format, "" if is_measured(work) else "by a rule")
            seconds[key] += count * seconds_of(work, H100)
            counts[key] += count * work.count
    for key, time in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"{1e3 * time:9.4f} ms {counts[key]:5d}  {', '.join(filter(None, key))}")


def main() -> int:
    """Run the command; return 1 if a prediction is off by more than its limit, or a pair is in the wrong order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--kernels", metavar="NAME", help="print one program's time by kernel")
    parser.add_argument("--dump", nargs="+", metavar=("NAME", "GRAPH"), help="write the list of a program")
    options = parser.parse_args()
    if options.dump:
        name, *graphs = options.dump
        lines = lines_of(ir.load(graph) for graph in graphs)
        LISTS.mkdir(exist_ok=True)
        (LISTS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return 0
    if options.kernels:
        _kernels(options.kernels)
        return 0
    table, ordered = rows(), pairs(H100)
    text = page(table, ordered)
    print(text)
    if options.write:
        PAGE.write_text(text, "utf-8")
    return 0 if all(row.holds for row in table) and all(pair.holds for pair in ordered) else 1


if __name__ == "__main__":
    sys.exit(main())
