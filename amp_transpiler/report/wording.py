"""Shares words between all forms of the report: names of precisions, grouped reasons, and remarks."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from amp_transpiler.phrases import counted, first_few
from amp_transpiler.precision.reasons import reason_of
from amp_transpiler.report.precision import Kind, Precision, kind_of
from amp_transpiler.report.record import NOTICEABLE, ReportRecord
from amp_transpiler.report.steps import StepsComparison

if TYPE_CHECKING:
    from amp_transpiler.graph.training_step import State
    from amp_transpiler.runtime.engines import EngineBuild

__all__ = [
    "engine_words",
    "human_number",
    "human_time",
    "opset_words",
    "percent",
    "precision_name",
    "reasons",
    "remarks",
    "speed_words",
    "state_lines",
    "target_words",
    "training_words",
]

_WITHOUT_KERNELS = frozenset({"coreml", "directml", "openvino", "qnn", "tensorrt", "tensorrt-rtx"})
"""Targets that have no kernels of a release of ONNX Runtime."""

# Operators with integer data. MatMulNBits is none: its weights are few bits, but its data may well be low.
_QUANTIZED = re.compile(r"(?:com\.microsoft::)?(?:QLinear\w+|\w*QuantizeLinear|\w*Integer\w*|QAttention|QGemm)")
_HARDLY_SMALLER = 0.95

# Made by ONNX Runtime's optimizer, some of them for the CPU only.
_FUSED = re.compile(r"com\.microsoft::Fused\w+|com\.microsoft\.nchwc::\w+")


def human_number(value: float) -> str:
    """Return three significant digits, or `0`, `nan`, `inf`."""
    if value == 0:
        return "0"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def human_time(milliseconds: float) -> str:
    """Return a time with three significant digits: `1.83 ms`, `12.5 µs`, `2.4 s`."""
    for unit, factor in (("s", 1e-3), ("ms", 1.0), ("µs", 1e3)):
        if milliseconds * factor >= 1 or unit == "µs":
            return f"{float(f'{milliseconds * factor:.3g}'):g} {unit}"
    raise AssertionError("the last unit takes every time")


def speed_words(before: float | None, after: float | None) -> str:
    """Return how a time compares with float32's: `1.42 times as fast`, `2.4 times as slow`; nothing if one is unknown.

    Args:
        before: time of float32, in any unit.
        after: time of the result, in the same unit.
    """
    if not before or not after:
        return ""
    if abs(after / before - 1) <= NOTICEABLE:
        return "as fast as float32"
    return f"{before / after:.3g} times as fast" if after < before else f"{after / before:.3g} times as slow"


def opset_words(before: int, after: int) -> str:
    """Return the opset, or both if it changed; a model of only other domains has none of ONNX's own."""
    names = ["none of ONNX's own" if opset == 0 else str(opset) for opset in (before, after)]
    return names[0] if before == after else " -> ".join(names)


def percent(fraction: float) -> str:
    """Return an error or a share as a percentage with three significant digits.

    `0.000764` gives `0.0764%`, `1e-9` gives `1e-07%`, `0` gives `0%`; what is not finite stays `nan` or `inf`.
    """
    if not math.isfinite(fraction):
        return str(fraction)
    text = f"{100 * fraction:.3g}"
    # From 1000 on, `g` would write an exponent; digits are easier to read there.
    return f"{float(text):.0f}%" if 1000 <= abs(float(text)) < 1e6 else f"{text}%"


def precision_name(kind: Kind, report: ReportRecord) -> str:
    """Return the word that readers see for `low`, `high` or `untouched`: `float16`, `float32` or `unchanged`."""
    low = "lower precision" if report.is_copy else report.dtype  # a copy keeps its types: it has no low format
    return str(Precision.of(kind, low))


def target_words(report: ReportRecord) -> str:
    """Return the target, and the ONNX Runtime whose kernels counted: `target cuda, kernels of ONNX Runtime 1.31`."""
    of = f", kernels of ONNX Runtime {report.ort}" if report.ort and report.target not in _WITHOUT_KERNELS else ""
    return f"target {report.target}{of}"


def engine_words(engine: EngineBuild) -> str:
    """Return what TensorRT's builder made of the file, in a line: its layers, the types of their results, the time."""
    if engine.fault:
        return f"{engine.builder} builds none"
    types = ", ".join(f"{name} {count}" for name, count in engine.precisions.items())
    of = f" (results: {types})" if types else ""
    return f"{engine.builder}: {counted(engine.layers, 'layer')}{of}, built in {engine.seconds:.1f} s"


def training_words(steps: StepsComparison) -> str:
    """Return how a training step fared, in a line: `50 steps; furthest off is parameter 'w': 0.3% of float32's way`."""
    if not steps.states:
        return f"not judged: {steps.reason}"
    worst = steps.worst
    if worst is None or not steps.judged:
        return f"{steps.steps} steps; only rounding decides where the states go, in float32, too"
    return (
        f"{steps.steps} steps; furthest off is {worst.role} '{worst.name}': {percent(worst.relative)} of float32's way"
    )


def state_lines(states: Sequence[State]) -> list[str]:
    """Return a line a role of a training step's states: `2 parameters: w, b; masters: w_fp32_master_0, ...`."""
    by_role: dict[str, list[State]] = {}
    for state in states:
        by_role.setdefault(state.role, []).append(state)
    lines = []
    for role, members in by_role.items():
        line = f"{counted(len(members), role)}: {first_few([state.input for state in members])}"
        masters = [state.master for state in members if state.master]
        lines.append(f"{line}; masters: {first_few(masters)}" if masters else line)
    return lines


def reasons(report: ReportRecord, kind: Kind) -> list[tuple[str, int]]:
    """Return (reason, number of nodes) for every reason of a precision, the most frequent first, ties by text.

    Reasons that differ only in the names they quote are counted together, with `'...'` for the names.
    """
    groups: dict[str, collections.Counter[str]] = {}
    for row in report.decisions:
        if kind_of(row.precision) == kind:
            groups.setdefault(reason_of(row.reason).without_names(), collections.Counter())[row.reason] += 1
    # If all nodes of a group have the same text, it keeps its names.
    counts = {next(iter(texts)) if len(texts) == 1 else text: texts.total() for text, texts in groups.items()}
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def remarks(report: ReportRecord) -> tuple[str, ...]:
    """Return the notes, after those that the figures of the report give: what hardly profits, and why."""
    if report.is_copy:
        result = report.destination or "the result"
        return f"{result} is a copy in the source's own precision, whatever its name says", *report.notes
    if report.dtype == "float32":
        return report.notes
    if report.low_nodes or not report.decisions:
        return *_hardly_profits(report), *report.notes
    counted_reasons = reasons(report, "high") or reasons(report, "untouched")
    reason, count = counted_reasons[0]
    # Without a low node, casts come from inputs, outputs or parameters that the user wants in the low format.
    subject = "no node" if report.casts else "nothing"
    return (
        f"{subject} became {report.dtype}: {reason} ({count} of {report.nodes} nodes)",
        *_hardly_profits(report),
        *report.notes,
    )


def _hardly_profits(report: ReportRecord) -> Iterator[str]:
    """Yield advice for models that another tool has worked on before: they should be converted first."""
    quantized = sum(_QUANTIZED.fullmatch(row.op) is not None for row in report.decisions)
    before, after = report.weight_bytes
    if quantized and report.casts and before and after > _HARDLY_SMALLER * before:
        saved = f"{1 - after / before:.0%}"
        yield (
            f"the model is quantized ({quantized} nodes): weights shrink by {saved} for {report.casts} casts, so it "
            "may not become faster; quantize the converted model instead, or leave this one as it is"
        )
    fused = {op: count for op, count in report.missing_kernels.items() if _FUSED.fullmatch(op)}
    if fused:
        yield (
            f"{counted(sum(fused.values()), 'node')} without a {report.dtype} kernel: {', '.join(sorted(fused))}, "
            "which ONNX Runtime's optimizer makes; if it did, convert the model from before that"
        )
