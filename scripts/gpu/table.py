"""The output of `bench_gpu.py`: one table, the truths, the cost model against the measurements, and what is wrong."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["against_the_model", "faults", "show"]

Record = dict[str, Any]
# Largest relative norm error, device against emulation: kernels order sums their own way, and fuse roundings away.
EMULATION_TOLERANCE = {"float16": 0.01, "bfloat16": 0.04}
PEERS = {"fp32", "onnxruntime", "torch eager", "torch.compile"}
OURS = {"prepare", "inference", "training"}
TIMED = ("inference", "torch", "compiled", "training", "torch_training", "compiled_training")


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with our own results, a line each."""
    for part in found["parts"]:
        if part["kind"] in OURS | {"truths"} and part["ended"].startswith(("failed", "stopped")):
            yield f"{part['kind']} {part['name']}: {part['ended']}"
    for record in found["records"]:
        label = f"{record['kind']} {record['name']} {record['variant']} {record.get('dtype', '')}"
        if record["kind"] in OURS and record["variant"] not in PEERS and "failed" in record:
            yield f"{label}: {record['failed']}"
        error = record.get("error_from_emulation")
        if error is not None and record["variant"] not in PEERS:
            limit = EMULATION_TOLERANCE[record["dtype"]]
            if not error <= limit:
                yield f"{label}: the device differs from the emulation by {error:.2%}, more than {limit:.0%}"


def against_the_model(records: Sequence[Record]) -> dict[str, Record]:
    """Return, for inference and training, measured over predicted time: the geometric mean and the extremes."""
    found = {}
    for kind in ("inference", "training"):
        pairs = [
            (record["ms"], record["predicted_ms"]) for record in records if record["kind"] == kind and _both(record)
        ]
        ratios = sorted(measured / predicted for measured, predicted in pairs)
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            found[kind] = {"mean": mean, "least": ratios[0], "most": ratios[-1], "programs": len(ratios)}
    return found


def _both(record: Record) -> bool:
    return bool(record.get("ms")) and bool(record.get("predicted_ms"))


def show(found: Mapping[str, Any]) -> None:
    """Print everything."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if found["smoke"]:
        console.print("small sizes: none of these figures says anything of a GPU")
    heads = ("what", "program", "variant", "format", "ms", "p90", "against fp32", "MB", "error", "from emulation")
    table = Table(*heads, "launches", "predicted ms", "measured / predicted")
    for record in found["records"]:
        if record["kind"] in TIMED:
            table.add_row(*cells(record, found["records"]))
    console.print(table)
    truths = Table("kernel", "dtype", "accumulates in", "error in ulps", "partial sums beyond 65504")
    for record in found["records"]:
        if record["variant"] == "truth":
            survives = {None: "", True: "come out right", False: "overflow"}[record["survives_range"]]
            truths.add_row(record["question"], record["dtype"], record["accumulates_in"], f"{record['ulps']}", survives)
        elif "gemm_error" in record:
            precision = "TF32" if record["gemm_error"] > 1e-5 else "float32"
            console.print(f"a float32 GEMM is computed in {precision} (largest error {record['gemm_error']:.1e})")
    console.print(truths)
    for kind, row in found["model"].items():
        spread = f"{row['least']:.2f} to {row['most']:.2f}, {row['programs']} programs"
        console.print(f"{kind}: measured over predicted {row['mean']:.2f} ({spread})")
    for part in found["parts"]:
        if part["ended"] != "done":
            console.print(f"{part['kind']} {part['name']}: {part['ended']}", markup=False)
    for fault in found["faults"]:
        console.print(f"fault: {fault}", markup=False)
    console.print(f"{found['environment']['device']}: {found['seconds']} s")


def cells(record: Record, records: Sequence[Record]) -> list[str]:
    """Return a row of the table."""
    head = [record["kind"], record["name"].split(".")[0], record["variant"], record["dtype"]]
    if "failed" in record:
        return [*head, "failed", *[""] * 8]
    wide = _float32(record, records)
    predicted = record.get("predicted_ms")
    return [
        *head,
        f"{record['ms']:.3f}",
        f"{record['p90_ms']:.3f}",
        "" if wide is None else f"{wide / record['ms']:.2f}",
        "" if record.get("memory") is None else f"{record['memory'] / 2**20:.0f}",
        _percent(record.get("error")),
        _percent(record.get("error_from_emulation")),
        f"{record.get('predicted_launches', '')}",
        "" if predicted is None else f"{predicted:.3f}",
        "" if not predicted else f"{record['ms'] / predicted:.2f}",
    ]


def _float32(record: Record, records: Sequence[Record]) -> float | None:
    """Return the milliseconds of our own float32 program of the same network, on which speed-ups are based."""
    kind = "training" if "training" in record["kind"] else "inference"
    model = record["name"].split(".")[0]
    for other in records:
        if other["kind"] == kind and other["variant"] == "fp32" and other["name"].split(".")[0] == model:
            return other.get("ms")
    return None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
