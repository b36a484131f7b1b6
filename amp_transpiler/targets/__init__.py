"""The backends that programs are converted for: one object each, which answers which operators it runs.

Importing this package is cheap: kernel tables are read, and onnx is imported, when a target is first asked something.
"""

from __future__ import annotations

import functools

from amp_transpiler.errors import OptionError
from amp_transpiler.targets.any import ANY
from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.releases import choose_release
from amp_transpiler.targets.schemas_only import SCHEMAS_ONLY
from amp_transpiler.targets.target import Target
from amp_transpiler.targets.tensorrt import TENSORRT, TENSORRT_RTX
from amp_transpiler.targets.webgpu import WEBGPU

__all__ = ["ANY", "CPU", "CUDA", "TARGETS", "TENSORRT", "TENSORRT_RTX", "WEBGPU", "Target", "find_target"]

TARGETS = {target.name: target for target in (CUDA, CPU, ANY, TENSORRT, TENSORRT_RTX, WEBGPU, *SCHEMAS_ONLY.values())}
"""Name -> target. A further backend is a file with its object, a kernel table if it has one, and an entry here."""


def find_target(name: str, ort: str | None = None) -> Target:
    """Return the target with this name.

    Args:
        name: the name.
        ort: the version of ONNX Runtime whose kernels, opset and IR version count, such as `1.20`; None for the
            installed one.

    Raises:
        OptionError: there is no such target, or no such version.
    """
    if name not in TARGETS:
        raise OptionError(f"unknown target {name!r}: expected one of {', '.join(TARGETS)}")
    if ort is None:
        return TARGETS[name]
    ort = str(ort).strip()
    choice = choose_release(ort)
    return _of_release(name, ort if choice.note else choice.release.version)


@functools.cache
def _of_release(name: str, ort: str) -> Target:
    return TARGETS[name].of_release(ort)  # one object a release: what is worked out about a target is kept by it
