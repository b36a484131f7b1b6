#!/usr/bin/env python3
"""Hold the price list to a device: predicted times of the programs that it ran beside what they took.

    python scripts/bench_prices.py                 # a table; needs neither a GPU nor PyTorch
    python scripts/bench_prices.py --write         # also writes docs/benchmarks/prices.md
    python scripts/bench_prices.py --kernels NAME  # one program's time by kernel
    python scripts/bench_prices.py --dump NAME GRAPH...   # the list of a program, of the graphs that ONNX Runtime made

The lists in `docs/benchmarks/prices/` have the nodes of each program as ONNX Runtime's CUDA provider optimized it at the
commit that was measured; the times are those of `docs/benchmarks/gpu/`. *Busy* is what kernels take, copies included;
*step* is a run with the host's part.
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
from typing import Any

import onnx_ir as ir
import scipy.stats

from amp_transpiler.precision.cost import DEVICES, predicted
from amp_transpiler.precision.cost.work import is_measured, seconds_of
from amp_transpiler.targets.price_list import price_list
from priced_pairs import Pair, pairs
from priced_programs import LISTS, costs_of_lines, lines_of, parse_lines

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmarks" / "gpu" / "2026-11-26-h100.jsonl"
PAGE = ROOT / "docs" / "benchmarks" / "prices.md"
H100 = DEVICES["H100"]
FIT, HELD_OUT = 1.3, 1.5  # times that a prediction may be off, of programs that prices come from, and of others


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A program that was measured.

    Attributes:
        stage, name, variant: of its record.
        list: the file with its nodes.
        held_out: whether no price comes from it.
        cuda_graph: whether a CUDA graph replayed it.
    """

    stage: str
    name: str
    variant: str
    list: str
    held_out: bool = False
    cuda_graph: bool = False

    @property
    def title(self) -> str:
        """The name of its row."""
        return f"{self.name.split('.')[0]}, {self.variant}, {'float32' if 'fp32' in self.variant else self._low}"

    @property
    def _low(self) -> str:
        return "bfloat16" if "bfloat16" in self.name else "float16"


PROGRAMS = (
    Program("training", "transformer.fp32.float32", "fp32", "transformer.fp32.float32"),
    Program("training", "transformer.O1.float16", "O1", "transformer.O1.float16"),
    Program("training", "transformer.O2.float16", "O2", "transformer.O2.float16"),
    Program("training", "transformer.O2+.float16", "O2, CUDA graph", "transformer.O2.float16", cuda_graph=True),
    Program("training", "transformer.O2.bfloat16", "O2", "transformer.O2.bfloat16", held_out=True),
    Program("training", "raf.fp32.float32", "fp32", "raf.fp32.float32"),
    Program("training", "raf.raf.float16", "raf", "raf.raf.float16"),
    Program("training", "raf.O2.float16", "O2", "raf.O2.float16", held_out=True),
    Program("training", "raf.O2+.float16", "O2, CUDA graph", "raf.O2.float16", held_out=True, cuda_graph=True),
    Program("training", "resnet50.fp32.float32", "fp32", "resnet50.fp32.float32"),
    Program("training", "resnet50.O1.float16", "O1", "resnet50.O1.float16"),
    Program("training", "resnet50.O2.float16", "O2", "resnet50.O2.float16"),
    Program("training", "resnet50.O2+.float16", "O2, CUDA graph", "resnet50.O2.float16", cuda_graph=True),
    Program("inference", "bert_base_b1", "fp32", "bert_base_b1.fp32", cuda_graph=True),
    Program("inference", "bert_base_b1", "auto", "bert_base_b1.auto", cuda_graph=True),
    Program("inference", "gpt2_prefill", "fp32", "gpt2_prefill.fp32", cuda_graph=True),
    Program("inference", "gpt2_prefill", "auto", "gpt2_prefill.auto", cuda_graph=True),
    Program("inference", "bert_base_b8", "fp32", "bert_base_b8.fp32", held_out=True, cuda_graph=True),
    Program("inference", "bert_base_b8", "auto", "bert_base_b8.auto", held_out=True, cuda_graph=True),
)
LEFT_OUT = (
    ("rocm, fp32", "ran with `fuse_conv_bias=1`: its convolutions' biases were wrong from the second step on"),
    ("rocm, every low level", "failed: no engine of cuDNN for the fused bias in 16 bits"),
    ("resnet18, O2", "failed: no plan of cuDNN for a weight's gradient, with the search HEURISTIC"),
    ("resnet50, vit_base and pointwise in fp32, inference", "wrong numbers with `fuse_conv_bias=1`"),
    ("resnet50, vit_base and pointwise, every low variant, inference", "failed for the same reason"),
    ("PyTorch's rows", "other kernels; its float32 products alone are evidence, of products without TF32"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A program with both times.

    Attributes:
        program: which.
        busy, step: predicted milliseconds.
        measured_busy, measured_step: what the device took.
        unmeasured: share of the predicted busy time that no measured price covers.
    """

    program: Program
    busy: float
    step: float
    measured_busy: float
    measured_step: float
    unmeasured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured busy time."""
        return self.busy / self.measured_busy

    @property
    def limit(self) -> float:
        """How many times the busy time may be off."""
        return HELD_OUT if self.program.held_out else FIT

    @property
    def holds(self) -> bool:
        """Whether the busy time is within the limit."""
        return 1 / self.limit <= self.ratio <= self.limit


def rows(programs: Sequence[Program] = PROGRAMS) -> list[Row]:
    """Return predicted and measured times of programs."""
    records = list(map(json.loads, RECORDS.read_text("utf-8").splitlines()))
    return [_row(program, _record(program, records)) for program in programs]


def _record(program: Program, records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    for record in records:
        if (record.get("stage"), record.get("name"), record.get("variant")) == (
            program.stage, program.name, program.variant
        ):  # fmt: skip
            return record
    raise SystemExit(f"{RECORDS} has no record of {program.stage} {program.name}, {program.variant}")


def _row(program: Program, record: dict[str, Any]) -> Row:
    made = predicted(
        [cost for count, cost in _costs(program) for _ in range(count)], H100, cuda_graph=program.cuda_graph
    )
    copies = sum(milliseconds for *_, milliseconds in record.get("copies", ()))
    return Row(
        program,
        made.busy_milliseconds,
        made.milliseconds,
        record["busy_ms"] + copies,
        record["ms"],
        made.unmeasured,
    )


def _costs(program: Program) -> Any:
    return costs_of_lines(parse_lines((LISTS / f"{program.list}.txt").read_text("utf-8").splitlines()))


def rank_correlation(pairs_of_times: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation of two orders."""
    first, second = zip(*pairs_of_times, strict=True)
    return float(scipy.stats.spearmanr(first, second).statistic)


# ---- what is printed ----
def page(found: Sequence[Row], ordered: Sequence[Pair]) -> str:
    """Return the page."""
    listed = price_list()
    marks = collections.Counter(row.mark for row in listed.rows.values())
    busy = rank_correlation([(row.busy, row.measured_busy) for row in found])
    step = rank_correlation([(row.step, row.measured_step) for row in found])
    return "\n".join(
        [
            "# Predicted times against a device",
            "",
            "`PYTHONPATH=. python scripts/bench_prices.py --write` writes this page, without a GPU. The price list, "
            "`amp_transpiler/targets/data/prices.txt`, has what kernels take on an "
            f"{listed.device} with ONNX Runtime {listed.release}: {marks['measured']} rows read out of measured "
            f"programs, {marks['derived']} that follow from those, {marks['inferred']} inferred. Here it predicts "
            "the programs that [a device ran](gpu.md), from the graphs that ONNX Runtime made of them at commit "
            "4ba23a0 (`docs/benchmarks/prices/`).",
            "",
            "*busy*: what kernels and copies take. *step*: a run with the host's part. *ratio*: predicted over measured "
            "busy time. *by a rule*: the share of the predicted time whose kernels no measured row covers. No price "
            "comes from a program that is held out.",
            "",
            "| program | busy, predicted ms | busy, measured ms | ratio | step, predicted ms | step, measured ms | by a rule | |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *(_cells(row) for row in found),
            "",
            f"Largest ratio, either way: {_worst(found, held_out=False):.2f}; of those held out "
            f"{_worst(found, held_out=True):.2f}. Rank correlation of {len(found)} programs: busy {busy:.3f}, "
            f"step {step:.3f}.",
            "",
            "Left out:",
            "",
            *(f"- {name}: {why}." for name, why in LEFT_OUT),
            "",
            "## Forms of one computation",
            "",
            "Predicted microseconds of two forms, the faster one first. The device's times order every pair so; *from* "
            "says which of them were measured, and which follow from measured kernels.",
            "",
            "| faster | slower | predicted us | from |",
            "| --- | --- | --- | --- |",
            *(
                f"| {pair.faster} | {pair.slower} | {pair.times[0]:.0f}, {pair.times[1]:.0f} | {pair.evidence} |"
                for pair in ordered
            ),
            "",
        ]
    )


def _cells(row: Row) -> str:
    kind = "held out" if row.program.held_out else ""
    return (
        f"| {row.program.title} | {row.busy:.3f} | {row.measured_busy:.3f} | {row.ratio:.2f} | {row.step:.3f} "
        f"| {row.measured_step:.3f} | {row.unmeasured:.1%} | {kind} |"
    )


def _worst(found: Sequence[Row], *, held_out: bool) -> float:
    return max(math.exp(abs(math.log(row.ratio))) for row in found if row.program.held_out is held_out)


def _kernels(name: str) -> None:
    """Print the time of one program by kernel."""
    seconds: collections.Counter[tuple[str, str, str]] = collections.Counter()
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    program = next((program for program in PROGRAMS if program.list == name), None)
    if program is None:
        raise SystemExit(f"no program {name!r}: one of {', '.join(program.list for program in PROGRAMS)}")
    for count, cost in _costs(program):
        for work in cost.kernels:
            key = (work.kernel, work.format, "" if is_measured(work) else "by a rule")
            seconds[key] += count * seconds_of(work, H100)
            counts[key] += count * work.count
    for key, time in seconds.most_common():
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
    found, ordered = rows(), pairs(H100)
    text = page(found, ordered)
    print(text)
    if options.write:
        PAGE.write_text(text, "utf-8")
    return 0 if all(row.holds for row in found) and all(pair.holds for pair in ordered) else 1


if __name__ == "__main__":
    sys.exit(main())
