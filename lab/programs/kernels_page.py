"""The tables of `training_kernels.py`, and the page that holds them."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from programs.kernel_families import FAMILIES, family_of_kernel
from programs.sizes import NETWORKS

__all__ = ["CASES", "REASONS", "Case", "page", "tables"]

Kernels = Sequence[Sequence[Any]]  # family, operator, shapes, ms, launches
_COSTLIEST = 12
_NAME = 90  # characters of a kernel's name


@dataclasses.dataclass(frozen=True)
class Case:
    """One step: a network at a level, in a format."""

    network: str
    level: str
    dtype: str


CASES = (
    Case("transformer", "O2", "float16"),
    Case("raf", "raf", "float16"),
    Case("raf", "O2", "float16"),
    Case("rocm", "O1", "float16"),
    Case("resnet50", "O2", "float16"),
)

HEAD = """# The kernels of training steps

`python lab/training_kernels.py --write`; {date}. Milliseconds of ours are [prices](../concepts/prices.md) of the
kernels that ONNX Runtime launches on an H100; no GPU has been used for them. PyTorch's AMP was measured on one
([the first run](gpu.md)): eager mode, a gradient scaler and a fused optimizer. Only its 18 costliest kernels were kept
by name; the others are one row. Its optimizer is all multi-tensor kernels, the check for infinity among them, and its
casts are all copies. Ours is what serves nothing but new states, their casts included. A row without launches copies
whole rows from one place of the device's memory to another.
"""
REASONS: Mapping[str, str] = {
    "matrix products": "the products are as fast as PyTorch's where their rows are aligned; in the last layer they are "
    "aligned here and not there. Sums of columns by products with ones count as products, too.",
    "convolutions": "layouts are changed around each convolution by cuDNN, in PyTorch as well; weight gradients by "
    "unfolded operands have copies beside their product.",
    "attention": "there is no kernel for the backward pass of attention in a stock ONNX Runtime: scores are written "
    "and read between the operators.",
    "normalisation": "there is no training kernel for either pass in a stock ONNX Runtime: statistics, sums and the "
    "combination are operators of their own.",
    "loss": "a LogSoftmax for the loss and a Softmax for its gradient each read all scores; PyTorch makes the gradient "
    "of the logarithms that it keeps.",
    "elementwise": "each operator is a kernel that reads and writes everything; PyTorch's backward kernels do several "
    "steps at once.",
    "casts": "parameters are cast in each step under autocast, in PyTorch as well; activations between operators whose "
    "policies differ.",
    "movement": "the weight of the last layer is copied to aligned rows and its gradient cut; heads of attention are "
    "laid out anew.",
    "sums": "gradients of biases and of normalisation's parameters, one kernel each.",
    "look-ups and scatters": "embeddings and labels; PyTorch's backward of an embedding fills the whole table first.",
    "optimizer": "ONNX has no operator that updates a tensor in one pass: a product with the rate, a difference and a "
    "cast each read and write the whole of it.",
}


def tables(steps: Iterable[tuple[Case, Kernels]], measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of steps beside what was measured of PyTorch."""
    return "\n".join(_section(case, kernels, _torch(case, measured)) for case, kernels in steps)


def page(steps: Iterable[tuple[Case, Kernels]], measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    head = HEAD.format(date=dt.datetime.now(tz=dt.UTC).date())
    reasons = "\n".join(f"- **{family}**: {REASONS[family]}" for family in FAMILIES)
    return f"{head}\n{tables(steps, measured)}\n## What is left, and why\n\n{reasons}\n"


def _torch(case: Case, measured: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    name = f"{case.network}.{case.dtype}"
    rows = [row for row in measured if row.get("stage") == "torch_training" and row.get("name") == name]
    return rows[-1] if rows else None


def _section(case: Case, kernels: Kernels, torch: Mapping[str, Any] | None) -> str:
    level = "RAF's autocast" if case.level == "raf" else case.level
    parts = [f"## {NETWORKS[case.network].name}, {level} in {case.dtype}", _families(kernels, torch), _ours(kernels)]
    if torch is not None:
        parts.append(_theirs(torch))
    return "\n\n".join(parts) + "\n"


def _families(kernels: Kernels, torch: Mapping[str, Any] | None) -> str:
    ours: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    for family, _, _, milliseconds, count in kernels:
        ours[family] += milliseconds
        launches[family] += count
    theirs: collections.Counter[str] = collections.Counter()
    for name, _, milliseconds in torch["costliest"] if torch is not None else ():
        theirs[family_of_kernel(name)] += milliseconds
    rows = [
        (family, _ms(ours[family]), str(launches[family] or ""), _ms(theirs[family]))
        for family in FAMILIES
        if ours[family] or theirs[family]
    ]
    if torch is not None:
        rows.append(("others, not kept by name", "", "", _ms(torch["busy_ms"] - sum(theirs.values()))))
    busy = _ms(torch["busy_ms"]) if torch is not None else ""
    rows.append(("**all**", _ms(sum(ours.values())), str(sum(launches.values())), busy))
    return _table(("kernels", "ours, ms predicted", "launches", "PyTorch, ms measured"), rows)


def _ours(kernels: Kernels) -> str:
    rows = [
        (operator, shapes, family, _ms(milliseconds), str(count))
        for family, operator, shapes, milliseconds, count in kernels[:_COSTLIEST]
    ]
    return "Ours, the costliest:\n\n" + _table(("operator", "shapes", "family", "ms", "launches"), rows)


def _theirs(torch: Mapping[str, Any]) -> str:
    rows = [
        (f"`{name[:_NAME]}`", family_of_kernel(name), _ms(milliseconds), f"{count:.0f}")
        for name, count, milliseconds in torch["costliest"][:_COSTLIEST]
    ]
    return "PyTorch's:\n\n" + _table(("kernel", "family", "ms", "launches"), rows)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
