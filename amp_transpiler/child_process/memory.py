"""Shares memory between the sessions of a child, and gives it back when all are closed and the child is idle.

Each separate session keeps the most that it ever took until it is closed: the pieces of a large program together took
many times what one of them needs. Without any arena the system hands out fresh pages for each tensor, which can take
longer than to compute it.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.runtime.ort import CPU_PROVIDER, SessionSettings, create_session

__all__ = ["give_back", "share"]

_NOTHING = """<ir_version: 8, opset_import: ["" : 17]> nothing (float[1] x) => (float[1] y) { y = Neg(x) }"""


@functools.cache
def share() -> None:
    """See to it that sessions opened with `shared_memory` share an arena on the CPU."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(place, None)


def give_back() -> None:
    """Give back what no value lies in."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _nothing().run(None, {"x": np.zeros(1, np.float32)}, options)


@functools.cache
def _nothing() -> onnxruntime.InferenceSession:
    model = ir.to_proto(ir.from_onnx_text(_NOTHING)).SerializeToString()
    return create_session(model, SessionSettings(optimize=False, threads=1, shared_memory=True), [CPU_PROVIDER])
