"""What `bench_gpu.py` prints: tables of times and outputs, the cost model against the measurements, what is wrong."""

from __future__ import annotations

import collections
import importlib.util
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpu.records import Record
from gpu.results import Results

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["against_the_model", "cells", "faults", "float32_ms", "node_faults", "show"]

# Largest relative norm error, device against emulation: kernels order sums their own way, and fuse roundings away.
EMULATION_TOLERANCE = {"float16": 0.01, "bfloat16": 0.04}
PEERS = {"fp32", "onnxruntime", "torch eager", "torch eager, .half()", "torch.compile"}
OURS = {"prepare", "inference", "training", "truths", "options", "models"}
TIMED = ("training", "torch_training", "compiled_training", "inference", "torch", "compiled")


def faults(results: Results) -> Iterator[str]:
    """Yield what is wrong with our own results, a line each."""
    for part in results.of("part"):
        if part["of"] in OURS | {"nodes"} and part["ended"].startswith(("failed", "stopped", "ended by")):
            yield f"{part['of']} {part['name']}: {part['ended']}"
    for record in results.of(*OURS):
        label = f"{record['stage']} {record['name']} {record.get('variant', '')} {record.get('dtype', '')}"
        if record.get("variant") in PEERS:
            continue
        if "failed" in record:
            yield f"{label}: {record['failed']}"
        error = record.get("error_from_emulation")
        if error is not None:
            limit = EMULATION_TOLERANCE[record["dtype"]]
            if not error <= limit:
                yield f"{label}: the device differs from the emulation by {error:.2%}, more than {limit:.0%}"
    for case, dtype, row in node_faults(results):
        yield f"nodes {case} {dtype}: {row}"


def node_faults(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yield the node cases that fail, or whose outputs the emulation does not explain, with the format."""
    for record in results.of("nodes"):
        if "failed" in record:
            yield record["case"], "", record["failed"]
        fp32 = record.get("fp32.float32", {})
        if "failed" in fp32:
            continue  # it does not run on the device, in any format
        for dtype, limit in EMULATION_TOLERANCE.items():
            row = record.get(f"O2.{dtype}", {})
            if "failed" in row:
                yield record["case"], dtype, row["failed"]
            elif not row.get("error_from_emulation", 0.0) <= limit and fp32.get("error", 0.0) <= limit:
                yield record["case"], dtype, f"{100 * row['error_from_emulation']:.3g} % from the emulation"


def against_the_model(records: Sequence[Record]) -> dict[str, Record]:
    """Return, for inference and training, measured over predicted time: the geometric mean and the extremes."""
    ratios_of = {}
    for stage in ("inference", "training"):
        pairs = [
            (record["ms"], record["predicted_ms"])
            for record in records
            if record["stage"] == stage and record.get("ms") and record.get("predicted_ms")
        ]
        ratios = sorted(measured / predicted for measured, predicted in pairs)
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            ratios_of[stage] = {"mean": mean, "least": ratios[0], "most": ratios[-1], "programs": len(ratios)}
    return ratios_of


def show(results: Results) -> None:
    """Print everything; where rich is missing, the faults alone."""
    if importlib.util.find_spec("rich") is None:
        print("rich not installed: the tables are left out", *faults(results), sep="\n")
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 180)
    if results.run.get("smoke"):
        console.print("small sizes: none of these figures says anything of a GPU")
    _show_times(console, results)
    _show_models(console, results)
    _show_truths(console, results)
    for stage, row in against_the_model(results.records).items():
        spread = f"{row['least']:.2f} to {row['most']:.2f}, {row['programs']} programs"
        console.print(f"{stage}: measured over predicted {row['mean']:.2f} ({spread})")
    for part in results.of("part"):
        if part["ended"] != "done":
            console.print(f"{part['of']} {part['name']}: {part['ended']}", markup=False)
    for fault in faults(results):
        console.print(f"fault: {fault}", markup=False)
    if results.run.get("missing"):
        console.print(f"not installed: {', '.join(results.run['missing'])}", markup=False)
    console.print(f"{results.run['device']}: {results.run['seconds']} s")


def _show_times(console: Console, results: Results) -> None:
    from rich.table import Table

    heads = ("what", "program", "variant", "format", "ms", "p90", "loop", "busy", "kernels", "against fp32", "MB")
    table = Table(*heads, "error", "from emulation", "launches", "predicted ms", "measured / predicted")
    rows = results.of(*TIMED)
    for record in rows:
        table.add_row(*cells(record, rows))
    if rows:
        console.print(table)


def _show_models(console: Console, results: Results) -> None:
    from rich.table import Table

    table = Table("model", "variant", "format", "error", "emulated", "from emulation", "verdict")
    rows = [record for record in results.of("models") if record["variant"] != "fp32"]
    for record in rows:
        errors = (_percent(record.get(key)) for key in ("error", "emulated_error", "error_from_emulation"))
        last = "failed" if "failed" in record else record.get("verdict", "")
        table.add_row(record["name"], record["variant"], record["dtype"], *errors, last)
    if rows:
        console.print(table)
    if cases := results.of("nodes"):
        console.print(f"{len(cases)} node cases, {len(list(node_faults(results)))} faults")


def _show_truths(console: Console, results: Results) -> None:
    rows = results.of("truths")
    counts: collections.Counter[str] = collections.Counter()
    for row in rows:
        counts["refused"] += "refused" in row
        counts["on the CPU"] += "on_cpu" in row
        counts["different every time"] += row.get("deterministic") is False
        counts["as one rounding in every bit"] += row.get("is") == "one"
    if rows:
        console.print(f"truths: {len(rows)} rows; {', '.join(f'{count} {what}' for what, count in counts.items())}")


def cells(record: Record, records: Sequence[Record]) -> list[str]:
    """Return a row of the table of times."""
    head = [record["stage"], record["name"].split(".")[0], record["variant"], record["dtype"]]
    if "ms" not in record:
        return [*head, "failed", *[""] * 11]
    wide, predicted = float32_ms(record, records), record.get("predicted_ms")
    return [
        *head,
        f"{record['ms']:.3f}",
        f"{record['p90_ms']:.3f}",
        f"{record['loop_ms']:.3f}",
        f"{record['busy_ms']:.3f}" if "busy_ms" in record else "",
        f"{record.get('kernels', '')}",
        "" if wide is None else f"{wide / record['ms']:.2f}",
        "" if record.get("memory_mb") is None else f"{record['memory_mb']:.0f}",
        _percent(record.get("error")),
        _percent(record.get("error_from_emulation")),
        f"{record.get('predicted_launches', '')}",
        "" if predicted is None else f"{predicted:.3f}",
        "" if not predicted else f"{record['ms'] / predicted:.2f}",
    ]


def float32_ms(record: Record, records: Sequence[Record]) -> float | None:
    """Return the milliseconds of our own float32 program of the same network, on which speed-ups are based."""
    stage = "training" if "training" in record["stage"] else "inference"
    model = record["name"].split(".")[0]
    for other in records:
        if other["stage"] == stage and other["variant"] == "fp32" and other["name"].split(".")[0] == model:
            return other.get("ms")
    return None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
