"""Records what a device that ran the written file measured, beside the errors of the emulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp_transpiler.report.comparison import OutputComparison

__all__ = ["DeviceMeasurement"]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """The outputs of the written file on a device, in several runs of each session that users open.

    Attributes:
        device: the device's name, such as `NVIDIA H100 80GB HBM3`.
        place: where it is, such as `CUDA:0`.
        runtime: the version of ONNX Runtime.
        runs: the runs of each session, on a sample each.
        sessions: the sessions that ran: `amp.Session`, ONNX Runtime's default session.
        outputs: graph output -> its comparison with float32 in the run with the largest error.
        emulated: graph output -> the relative error of the emulation on the sample of that run.
        contradictions: a sentence for each output whose error the emulation does not explain.
    """

    device: str
    place: str
    runtime: str
    runs: int
    sessions: tuple[str, ...]
    outputs: Mapping[str, OutputComparison] = dataclasses.field(default_factory=dict)
    emulated: Mapping[str, float] = dataclasses.field(default_factory=dict)
    contradictions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.device}, ONNX Runtime {self.runtime}"
