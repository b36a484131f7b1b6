"""Convert a model with another tool: run as a script by the Python of that tool's environment.

    python peer.py TOOL MODEL INPUTS.npz RESULT CPU_SECONDS [float16|bfloat16]

Each tool is called as its own documentation calls it, with inputs and outputs that keep their types; only AutoCast
knows bfloat16. It prints one JSON object: the CPU seconds of the conversion, threads and children included, or
`error`. Past the limit of CPU seconds the system ends it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

__all__ = ["TOOLS"]

Feeds = dict[str, Any]
ATTEMPTS: list[float] = []  # conversions that a search has tried


def onnx_runtime(source: str, inputs: str) -> Callable[[], Any]:  # noqa: ARG001 - it has no use for data
    """ONNX Runtime's `convert_float_to_float16`, its casts sorted in."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = _loaded(source)

    def convert() -> Any:
        converted = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
        converted.topological_sort()
        return converted.model

    return convert


def converter_common(source: str, inputs: str) -> Callable[[], Any]:  # noqa: ARG001 - it has no use for data
    """onnxconverter-common's `convert_float_to_float16`."""
    from onnxconverter_common.float16 import convert_float_to_float16

    model = _loaded(source)
    return lambda: convert_float_to_float16(model, keep_io_types=True)


def auto_mixed_precision(source: str, inputs: str) -> Callable[[], Any]:
    """onnxconverter-common's search by converting and running, with the limits of its documentation."""
    from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision, float16

    model, feeds = _loaded(source), _feeds(inputs)
    attempt = float16.convert_float_to_float16

    def counted(*arguments: Any, **options: Any) -> Any:
        ATTEMPTS.append(time.monotonic())
        return attempt(*arguments, **options)

    float16.convert_float_to_float16 = counted
    return lambda: auto_convert_mixed_precision(model, feeds, rtol=0.01, atol=0.001, keep_io_types=True)


def autocast(source: str, inputs: str, low: str = "fp16") -> Callable[[], Any]:
    """NVIDIA's AutoCast, calibrated on the data."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    return lambda: convert_to_mixed_precision(
        source, low_precision_type=low, keep_io_types=True, calibration_data=inputs
    )


# Name -> what converts, and the package that it is from.
TOOLS = {
    "ONNX Runtime": (onnx_runtime, "onnxruntime"),
    "converter-common": (converter_common, "onnxconverter-common"),
    "auto_mixed_precision": (auto_mixed_precision, "onnxconverter-common"),
    "AutoCast": (autocast, "nvidia-modelopt"),
}
BFLOAT16 = {"AutoCast": functools.partial(autocast, low="bf16")}


def _loaded(source: str) -> Any:
    import onnx

    return onnx.load(source)


def _feeds(inputs: str) -> Feeds:
    import numpy as np

    with np.load(inputs, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _cpu_seconds() -> float:
    ended = (resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in ended)


def main(tool: str, source: str, inputs: str, target: str, limit: str, low: str = "float16") -> None:
    """Convert, save, and print the record."""
    import onnx

    make, package = TOOLS[tool]
    if low == "bfloat16":
        make = BFLOAT16[tool]
    record: dict[str, Any] = {}
    saved = os.dup(1)
    with pathlib.Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 1)  # one of them prints all names of nodes, again and again
        try:
            record["tool"] = f"{package} {importlib.metadata.version(package)}"
            convert = make(source, inputs)
            begun, wall = _cpu_seconds(), time.monotonic()
            most = int(begun + float(limit)) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
            model = convert()
            record |= {"seconds": _cpu_seconds() - begun, "wall": time.monotonic() - wall}
            if ATTEMPTS:
                record["attempts"] = len(ATTEMPTS)
            onnx.save(model, target)
        except Exception as error:  # noqa: BLE001 - whatever the tool raises is what is to be known
            record["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    os.dup2(saved, 1)
    os.close(saved)
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
