"""Evidence for a setting: the device on which it was seen to be right and to pay, and how to see it again."""

from __future__ import annotations

import dataclasses
import functools

__all__ = ["H100", "Evidence"]


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """An observation on a device.

    Attributes:
        seen: what was observed, with numbers.
        device: the device's name.
        versions: of what ran.
        run: the file in `docs/benchmarks/gpu` that has the rows.
        command: what shows it again.
    """

    seen: str
    device: str
    versions: str
    run: str
    command: str

    def __str__(self) -> str:
        return f"{self.device}, {self.versions}: {self.seen}"


H100 = functools.partial(
    Evidence,
    device="NVIDIA H100 80GB HBM3",
    versions="ONNX Runtime 1.31.1, cuDNN 9.19",
    run="2026-11-26-h100-2.jsonl",
    command="python lab/bench_gpu.py --only options",
)
"""Evidence of the runs on an H100."""
