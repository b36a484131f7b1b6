"""The arithmetic of a device's kernels: the rows of `data/arithmetic.txt`, by operator, format and condition."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from amp_transpiler.targets.kernel_table import is_within

__all__ = [
    "CUDA_TABLE",
    "EXACT_RESULT",
    "MEASURED_EVIDENCE",
    "UNMEASURED_NOISE",
    "WEBGPU_TABLE",
    "DeviceArithmetic",
    "KernelRow",
    "arithmetic_of",
]

CUDA_TABLE, WEBGPU_TABLE = "arithmetic", "arithmetic_webgpu"
"""The files in `data/` that have a provider's kernels, without their ending."""

EXACT_RESULT = "one"
"""The rule of a kernel that rounds the exact result once."""

MEASURED_EVIDENCE = frozenset({"bits", "probe", "nodes", "models", "kernel"})
"""The kinds of evidence that come from a run on the device: of the operator, or of another one with its kernel."""

UNMEASURED_NOISE = 1.0
"""Half units in the last place by which the result of an unmeasured kernel may differ."""

_EMPTY = "-"
_FORMATS = {"both": ("float16", "bfloat16")}


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel in a format, under a condition.

    Attributes:
        operator: as `operator_name` writes it, such as `Sigmoid` or `com.microsoft::QuickGelu`.
        formats: of its results.
        condition: a name of `kernel_conditions.CONDITIONS`; empty if it always holds.
        computes: the rule; `EXACT_RESULT` for the exact result, rounded once.
        sums_in: `float32` or `low`; empty where nothing is summed.
        noise: half units in the last place by which a result may differ from the rule.
        fault: what is wrong with it; empty if nothing is.
        releases: of ONNX Runtime, such as `1.23-`; empty for all.
        evidence: how it is known.
    """

    operator: str
    formats: tuple[str, ...]
    condition: str
    computes: str
    sums_in: str
    noise: float
    fault: str
    releases: str
    evidence: str

    @property
    def is_measured(self) -> bool:
        """Whether it comes from a run on the device."""
        return self.evidence in MEASURED_EVIDENCE

    def is_of(self, release: str) -> bool:
        """Whether a release of ONNX Runtime has it."""
        return not self.releases or any(
            is_within(release, *(span.split("-") if "-" in span else (span, span))) for span in self.releases.split(",")
        )


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceArithmetic:
    """The kernels of a device in a release of ONNX Runtime.

    Attributes:
        device: the device whose kernels were measured.
        release: the release that was measured, such as `1.31`.
        wanted_device: the device that is asked about.
        wanted_release: the release that is asked about.
        rows: operator and format -> its rows, in the order in which their conditions are tried.
        table: the name of the file that has them, which says whose kernels they are.
    """

    device: str
    release: str
    wanted_device: str
    wanted_release: str
    rows: Mapping[tuple[str, str], tuple[KernelRow, ...]]
    table: str = CUDA_TABLE

    @property
    def is_measured(self) -> bool:
        """Whether the device and the release that are asked about are those that were measured."""
        return self.wanted_release == self.release and self.is_same_device

    @property
    def is_same_device(self) -> bool:
        """Whether the device that is asked about is the measured one: `H100` is `NVIDIA H100 80GB HBM3`."""
        words, asked = self.device.upper().split(), self.wanted_device.upper().split()
        return words[1] in asked and set(asked) <= set(words)  # the maker's name comes before that of the device

    @property
    def further_noise(self) -> float:
        """Half units in the last place that results of another device or release may differ by beside a row's noise."""
        return 0.0 if self.is_measured else UNMEASURED_NOISE

    def row(self, operator: str, format_name: str, holds: Callable[[str], bool]) -> KernelRow | None:
        """Return the first row of an operator whose condition holds; None for an unmeasured kernel.

        Args:
            operator: as `operator_name` writes it.
            format_name: of its results, such as `float16`.
            holds: whether a named condition holds.
        """
        rows = self.rows.get((operator, format_name), ())
        return next((row for row in rows if not row.condition or holds(row.condition)), None)

    def __str__(self) -> str:
        return f"{self.device}, ONNX Runtime {self.release}"


@functools.cache
def arithmetic_of(device: str, release: str, table: str = CUDA_TABLE) -> DeviceArithmetic:
    """Return the arithmetic of a device in a release of ONNX Runtime: that of the nearest ones that were measured.

    Args:
        device: its name, such as `H100`.
        release: such as `1.31`.
        table: the name of the file with the rows of its provider's kernels.
    """
    facts, rows = _file(table)
    chosen: dict[tuple[str, str], tuple[KernelRow, ...]] = {}
    for row in rows:
        for name in row.formats if row.is_of(release) else ():
            chosen[row.operator, name] = (*chosen.get((row.operator, name), ()), row)
    return DeviceArithmetic(facts["device"], facts["release"], device, release, MappingProxyType(chosen), table)


@functools.cache
def _file(table: str = CUDA_TABLE) -> tuple[Mapping[str, str], tuple[KernelRow, ...]]:
    path = pathlib.Path(__file__).parent / "data" / f"{table}.txt"
    return parsed(path.read_text(encoding="utf-8").splitlines())


def parsed(lines: Iterable[str]) -> tuple[Mapping[str, str], tuple[KernelRow, ...]]:
    """Return the facts of the file's head, and its rows.

    Raises:
        ValueError: a row has another number of cells than the header.
    """
    facts: dict[str, str] = {}
    header: list[str] = []
    rows = []
    for line in lines:
        if line.startswith("#") or not line.strip():
            name, colon, text = line.lstrip("# ").partition(": ")
            if colon and name in ("device", "release", "runs"):
                facts[name] = text.strip()
            continue
        cells = [cell.strip() for cell in line.split(" | ")]
        if not header:
            header = cells
            continue
        if len(cells) != len(header):
            raise ValueError(f"arithmetic table: {cells[0]} has {len(cells)} cells instead of {len(header)}")
        rows.append(_row(["" if cell == _EMPTY else cell for cell in cells]))
    return facts, tuple(rows)


def _row(cells: list[str]) -> KernelRow:
    operator, formats, condition, computes, sums_in, noise, fault, releases, evidence = cells
    names = _FORMATS.get(formats, (formats,))
    return KernelRow(operator, names, condition, computes, sums_in, float(noise), fault, releases, evidence)
