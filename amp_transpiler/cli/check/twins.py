"""Finds which 16-bit model belongs to which float32 source next to it, and whether it still does.

Files are compared by their weights, not by their times: a fresh checkout has no times that mean anything.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import INFINITY_OF_MASKS
from amp_transpiler.graph.dtypes import FLOAT16, LOW_DTYPES
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program

__all__ = ["other_interface", "overflowing_weight", "source_of", "stale_because", "twins_of"]

# As this command names its results, and as others do: model.fp16.onnx, model_fp16.onnx, model-float16.onnx.
_LOW_NAME = re.compile(r"(?P<stem>.+?)[._-](?:fp16|bf16|float16|bfloat16|half)\.onnx", re.IGNORECASE)
_ROUNDING = 2.0**-7  # one unit in the last place of bfloat16, the coarser of the two
_SMALL = 2.0**-14  # below it float16 loses digits
_SHARE = 0.01  # of a weight's elements; a converter may clamp or scale single ones


def source_of(path: pathlib.Path) -> pathlib.Path | None:
    """Return the float32 model beside a 16-bit one, by their names; None if there is none."""
    matched = _LOW_NAME.fullmatch(path.name)
    if matched is None:
        return None
    source = path.with_name(f"{matched['stem']}.onnx")
    return source if source.is_file() else None


def twins_of(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the 16-bit models beside a float32 one, by their names."""
    names = sorted(path.parent.glob("*.[oO][nN][nN][xX]"))
    return [other for other in names if source_of(other) == path]


def stale_because(source: Program, low: Program) -> str:
    """Return which weight of a 16-bit model is not that of its source, rounded; empty if none is."""
    for name, before, after in _pairs(source, low):
        close = np.abs(after - before) <= _ROUNDING * np.abs(before) + _SMALL
        close |= ~np.isfinite(after) | ~np.isfinite(before)
        close |= (before <= -INFINITY_OF_MASKS) & (after <= -FLOAT16.max / 2)  # of masks: the conversion shortens it
        if 1.0 - close.mean() > _SHARE:
            return f"weight '{name}' has other values"
    return ""


def overflowing_weight(source: Program, low: Program) -> str | None:
    """Return the first weight that is infinite in 16 bits and finite in float32; None if there is none."""
    for name, before, after in _pairs(source, low):
        if (np.isinf(after) & np.isfinite(before)).any():
            return name
    return None


def other_interface(source: Program, low: Program) -> str:
    """Return which input or output differs in name or in a fixed size; empty if none does."""
    graphs = source.model.graph, low.model.graph
    for what in ("input", "output"):
        wanted, actual = (getattr(graph, f"{what}s") for graph in graphs)
        names, others = [[str(value.name) for value in values] for values in (wanted, actual)]
        if names != others:
            return f"its {what}s are {first_few(others, 5)}, not {first_few(names, 5)}"
        for expected, other in zip(wanted, actual, strict=True):
            if not _agree(_sizes(expected), _sizes(other)):
                return f"its {what} '{expected.name}' has shape {other.shape}, not {expected.shape}"
    return ""


def _agree(first: list[int | None] | None, second: list[int | None] | None) -> bool:
    """Whether two shapes can be the same: open sizes agree with all."""
    if first is None or second is None:
        return True
    return len(first) == len(second) and all(a == b or None in (a, b) for a, b in zip(first, second, strict=True))


def _sizes(value: ir.Value) -> list[int | None] | None:
    """Return the fixed sizes of a value, None for open ones; None without a shape."""
    if value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _pairs(source: Program, low: Program) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each weight that is float32 in the source and 16-bit under the same name, both as float32."""
    others = low.model.graph.initializers
    for name, value in source.model.graph.initializers.items():
        before, after = value.const_value, others[name].const_value if name in others else None
        if before is None or after is None or before.dtype != ir.DataType.FLOAT or after.dtype not in LOW_DTYPES:
            continue
        if before.shape.numpy() == after.shape.numpy() and before.size:
            yield name, before.numpy(), after.numpy().astype(np.float32)
