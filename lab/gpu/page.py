"""The page of the runs on GPUs, from the files in `docs/benchmarks/gpu/`: `bench_gpu.py --page`."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from amp_transpiler.report.verdict import Verdict, judgement_of
from gpu.records import Record
from gpu.results import Results, read
from gpu.table import against_the_model, float32_ms, node_faults

__all__ = ["FOLDER", "PAGE", "page"]

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks" / "gpu"
PAGE = ROOT / "docs" / "benchmarks" / "gpu.md"

_HEAD = """\
# On a GPU

`PYTHONPATH=. python lab/bench_gpu.py --page` writes this page from the files in `docs/benchmarks/gpu/`, one a run
of `lab/bench_gpu.py`. A file has every record of its run: also p90, copies, the costliest kernels by name, and the
answers of the probe (`amp_transpiler.runtime.probe`).

*ms*: the median of a step or a run, the host's part included. *loop*: of 20 in a row, with one wait. *busy*: what
kernels take of it, and how many there are, by CUPTI. *MB*: what the device's memory grew by. *predicted ms*, where it
stands, is not measured: it is what `amp_transpiler.cost` computed from the graph that ran. Our float32 takes
TF32 where the device has it, which is ONNX Runtime's default; PyTorch's does not. Errors are relative norms against
float32 on the CPU; *from emulation* is the distance between the device and what the CPU emulates of it.
"""
_PAIRS = (("auto", "float16"), ("O2", "float16"), ("auto", "bfloat16"), ("onnxruntime", "float16"))
_FAR = 1.5  # times the emulated error
_SLACK = 1.02  # by how much a device's error may be above the stated one
_NOTHING = 1e-6  # an error that float32 itself has
_LIMITS = {"float16": 0.02, "bfloat16": 0.05}  # the defaults, at level auto


def page(folder: pathlib.Path = FOLDER) -> str:
    """Return the page, the newest run first."""
    runs = {path.name: read(path) for path in sorted(folder.glob("*.jsonl"))}
    sections, tried = [], frozenset[str]()
    for name, results in runs.items():
        sections.append(list(_of_run(name, results, tried)))
        tried |= {record["name"] for record in results.of("models")}
    blocks = [_HEAD, *(block for section in reversed(sections) for block in section)]
    return "\n".join(blocks).rstrip() + "\n"


def _of_run(name: str, results: Results, tried: Collection[str]) -> Iterator[str]:
    """Yield the blocks of a run; `tried` are the models of those before."""
    run = results.run
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
    yield f"## {run['date']}, {run['device']}\n"
    program = f"commit {run['commit']}; `{_present(run['command'])}`"
    yield f"Driver {run['driver']}, {versions}; {program}; [all records](gpu/{name}).\n"
    for note in run.get("notes", ()):
        yield f"- {_present(note)}"
    if run.get("notes"):
        yield ""
    yield from _times(results, "Training", ("training", "torch_training", "compiled_training"), _OF_TRAINING)
    yield from _times(results, "Inference", ("inference", "torch", "compiled"), _OF_INFERENCE)
    yield from _times(results, "Options of the provider", ("options",), _OF_OPTIONS)
    yield from _models(results)
    yield from _coverage(results, tried)
    yield from _nodes(results)
    yield from _truths(results)
    yield from _failures(results)


def _present(text: str) -> str:
    """Return a text of a record with its scripts where they are now: the first runs had them in one folder."""
    return text.replace("scripts/bench_gpu.py", "lab/bench_gpu.py").replace(
        "scripts/raf_bert.py", "examples/raf_bert.py"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


_Column: TypeAlias = tuple[str, Callable[[Record, Sequence[Record]], str]]
_TIMES: tuple[_Column, ...] = (
    ("program", lambda row, _: _program(row)),
    ("variant", lambda row, _: row.get("variant", "")),
    ("format", lambda row, _: row.get("dtype", "")),
    ("ms", lambda row, _: _number(row["ms"])),
    ("loop", lambda row, _: _number(row.get("loop_ms"))),
    ("busy", lambda row, _: _number(row.get("busy_ms"))),
    ("kernels", lambda row, _: _number(row.get("kernels"), 0)),
    ("times fp32", lambda row, rows: _number(_faster(row, rows), 2)),
    ("predicted ms", lambda row, _: _number(row.get("predicted_ms"))),
)
_OF_TRAINING: tuple[_Column, ...] = (
    ("MB", lambda row, _: _number(row.get("memory_mb"), 0)),
    ("loss", lambda row, _: _number(row.get("loss"))),
)
_OF_OPTIONS: tuple[_Column, ...] = (
    ("MB", lambda row, _: _number(_megabytes(row.get("memory")), 0)),
    ("largest error of four runs", lambda row, _: _percent(max(row["errors"]) if row.get("errors") else None)),
    ("loss of step 6", lambda row, _: _number(row["losses"][-1]) if row.get("losses") else ""),
)
_OF_INFERENCE: tuple[_Column, ...] = (
    ("error", lambda row, _: _percent(row.get("error"))),
    ("from emulation", lambda row, _: _percent(row.get("error_from_emulation"))),
)


def _times(results: Results, title: str, stages: Sequence[str], more: Sequence[_Column]) -> Iterator[str]:
    rows = [record for record in results.of(*stages) if "ms" in record]
    if not rows:
        return
    programs = list(dict.fromkeys(_program(row) for row in rows))
    rows.sort(key=lambda row: programs.index(_program(row)))
    columns = {head: [cell(row, rows) for row in rows] for head, cell in (*_TIMES, *more)}
    columns = {head: cells for head, cells in columns.items() if any(cells)}
    yield f"### {title}\n"
    yield table(list(columns), zip(*columns.values(), strict=True))
    for stage, ratio in against_the_model(rows).items():
        spread = f"{ratio['least']:.2f} to {ratio['most']:.2f}"
        yield f"Measured over predicted time, {stage}: {ratio['mean']:.2f} in the geometric mean, {spread}.\n"


def _megabytes(size: float | None) -> float | None:
    return None if size is None else size / 2**20


def _program(row: Record) -> str:
    return str(row["name"].split(".")[0])


def _faster(row: Record, rows: Sequence[Record]) -> float | None:
    wide = float32_ms(row, rows)
    return None if wide is None else wide / row["ms"]


def _models(results: Results) -> Iterator[str]:
    rows = results.of("models")
    if not rows:
        return
    by_model: dict[str, dict[tuple[str, str], Record]] = {}
    for row in rows:
        by_model.setdefault(row["name"], {})[row["variant"], row["dtype"]] = row
    measured = [row for row in rows if "emulated_error" in row and "error" in row]
    far = [row for row in measured if _is_far(row)]
    yield "### Models: errors on the device and emulated\n"
    yield (
        f"{len(by_model)} models, {len(measured)} conversions: {len(measured) - len(far)} are within {_FAR} times of "
        "the error that the emulation says. A cell is the error on the device / the emulated one, in bold where it is "
        "further off.\n"
    )
    heads = ["model", "fp32", *(f"{level}, {dtype}" for level, dtype in _PAIRS)]
    yield table(heads, (_model_cells(name, variants) for name, variants in by_model.items()))


def _model_cells(name: str, variants: dict[tuple[str, str], Record]) -> list[str]:
    cells = [name, _percent(variants.get(("fp32", "float32"), {}).get("error"))]
    for pair in _PAIRS:
        row = variants.get(pair, {})
        text = "failed" if "failed" in row else _percent(row.get("error"))
        if "emulated_error" in row and "failed" not in row:
            text = f"{text} / {_percent(row['emulated_error'])}"
            text = f"**{text}**" if _is_far(row) else text
        cells.append(text)
    return cells


def _is_verified(row: Record) -> bool:
    return judgement_of(row["verdict"]).word is Verdict.VERIFIED


def _is_far(row: Record) -> bool:
    return not row["error"] <= _FAR * row["emulated_error"] and row["error"] > 1e-6


def _coverage(results: Results, tried: Collection[str]) -> Iterator[str]:
    """Say how many verdicts stated at least the device's error, and which did not."""
    rows = [row for row in results.of("models") if "stated_error" in row and "error" in row]
    if not rows:
        return
    groups = {
        "models that no device had run before": [row for row in rows if row["name"] not in tried],
        "models of runs before": [row for row in rows if row["name"] in tried],
    }
    counts = [f"{sum(map(_is_covered, group))} of {len(group)} of {kind}" for kind, group in groups.items() if group]
    false = [row for row in rows if _is_verified(row) and row["error"] > _LIMITS[row["dtype"]]]
    yield (
        f"A verdict made without a GPU covers the device's error if the error it states is at most {_SLACK - 1:.0%} "
        f"smaller: {', '.join(counts)}. Verified, and beyond the limit on the device: "
        f"{', '.join(_conversion(row) for row in false) or 'none'}.\n"
    )
    missed = [row for row in rows if not _is_covered(row)]
    if missed:
        yield table(
            ["not covered", "format", "low nodes", "stated", "on the device", "limit"],
            (
                [
                    row["name"],
                    row["dtype"],
                    f"{row['low_nodes']} of {row['nodes']}",
                    *map(_percent, (row["stated_error"], row["error"], _LIMITS[row["dtype"]])),
                ]
                for row in missed
            ),
        )


def _is_covered(row: Record) -> bool:
    return bool(row["error"] <= _SLACK * row["stated_error"] or row["error"] < _NOTHING)


def _conversion(row: Record) -> str:
    return f"{row['name']} in {row['dtype']}"


def _nodes(results: Results) -> Iterator[str]:
    cases = results.of("nodes")
    if not cases:
        return
    wrong = list(node_faults(results))
    refused = [case["case"] for case in cases if "failed" in case.get("fp32.float32", {})]
    yield "### ONNX's node cases\n"
    yield (
        f"{len(cases)} cases, each at O2 in both formats. Right in float32 on the device, and in 16 bits beyond what "
        f"the emulation explains: {len({name for name, _, _ in wrong})} cases.\n"
    )
    if wrong:
        yield table(["case", "format", "what"], wrong)
    if refused:
        yield f"Not run by the device in float32 either: {', '.join(f'`{name}`' for name in refused)}.\n"


def _truths(results: Results) -> Iterator[str]:
    rows = results.of("truths")
    if not rows:
        return
    restless = [_asked(row) for row in rows if row.get("deterministic") is False]
    by_operator: dict[tuple[str, str, str], list[Record]] = {}
    for row in rows:
        by_operator.setdefault((row["probe"], row["op"], row["format"]), []).append(row)
    yield "### Arithmetic of kernels\n"
    yield (
        f"{len(rows)} questions of the probe, {sum('refused' in row for row in rows)} refused. *every bit*: the "
        "arithmetic that gives the device's result in every bit of every question; *one rounding*: the largest "
        f"distance from it, in units in the last place. Another result in every run: {', '.join(restless) or 'none'}.\n"
    )
    heads = ["question", "operators", "format", "asked", "every bit", "one rounding"]
    yield table(heads, (_truth_cells(key, group) for key, group in by_operator.items()))


def _truth_cells(key: tuple[str, str, str], rows: Sequence[Record]) -> list[str]:
    answered = [row for row in rows if "candidates" in row]
    same = [name for name in (answered[0]["candidates"] if answered else ()) if _always(name, answered)]
    ulps = [row["candidates"]["one"].get("max_ulp", math.inf) for row in answered]
    worst = f"{max(ulps):g}" if ulps else "refused"
    other = sum(row["candidates"]["one"].get("nonfinite", 0) for row in answered)
    return [*key, str(len(rows)), same[0] if same else "", worst + (f", {other} not finite" if other else "")]


def _always(name: str, rows: Sequence[Record]) -> bool:
    return all(row["candidates"].get(name, {}).get("differing") == 0 for row in rows)


def _failures(results: Results) -> Iterator[str]:
    rows = [row for row in results.records if "failed" in row and row["stage"] != "nodes"]
    lines = [
        f"- {row['stage']} {row['name']}, {row['variant']} {row['dtype']}: {_short(row['failed'])}" for row in rows
    ]
    lines += [
        f"- {part['of']} {part['name']}: {_short(part['ended'])}"
        for part in results.of("part")
        if part["ended"] != "done"
    ]
    if lines:
        yield "### What failed or was left out\n"
        yield "\n".join(lines) + "\n"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("<", "&lt;").replace("|", "/")
    return f"`{line[:160]}{'...' if len(line) > 160 else ''}`" if "`" not in line else line[:160]


def _asked(row: Record) -> str:
    return f"{row['op']} {row['format']} ({row['condition']})"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return "infinite"
    return f"{value:.0%}".replace("%", " %") if value >= 0.1 else f"{100 * value:.2g} %"
