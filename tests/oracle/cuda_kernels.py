"""ONNX Runtime's own word on which operators its CUDA provider runs in 16 bits: its registry, read without a GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys

import onnx
import onnx.defs

from standin import stand_in_environment

_CHILD = """
import json, onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
onnxruntime.set_default_logger_severity(4)
print(json.dumps([
    [kernel.domain, kernel.op_name, list(kernel.version_range), kernel.type_constraints]
    for kernel in state.get_all_opkernel_def() if kernel.provider == "CUDAExecutionProvider"
]))
"""


@dataclasses.dataclass(frozen=True)
class CudaKernels:
    """The operators with a kernel for a 16-bit type.

    Attributes:
        ranges: (domain, operator) -> first and last version of each such kernel.
    """

    ranges: dict[tuple[str, str], list[tuple[int, int]]]

    @classmethod
    def read(cls, element: str = "tensor(float16)") -> CudaKernels:
        """Ask the installed ONNX Runtime.

        Raises:
            CannotTell: this machine lacks gcc, or the CUDA provider.
        """
        spec = importlib.util.find_spec("onnxruntime")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        capi = pathlib.Path(spec.submodule_search_locations[0]) / "capi"
        command, environment = [sys.executable, "-c", _CHILD], stand_in_environment(capi)
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for domain, operator, (first, last), constraints in json.loads(done.stdout):
            if any(element in types for types in constraints.values()):
                ranges.setdefault((domain, operator), []).append((first, last))
        return cls(ranges)

    def run(self, node: onnx.NodeProto, opset: int) -> bool:
        """Whether there is such a kernel for a node of a model at `opset`; other domains have one version."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = onnx.defs.get_schema(node.op_type, opset, "").since_version if not domain else 1
        return any(first <= version <= last for first, last in self.ranges.get((domain, node.op_type), []))
