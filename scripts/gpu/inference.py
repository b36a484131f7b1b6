"""Parts "inference" (ONNX Runtime, every variant of a model), "torch" and "compiled" (PyTorch, eager and compiled)."""

from __future__ import annotations

import contextlib
import math
import pathlib
from typing import Any

import numpy as np
import onnx_ir as ir

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.runtime.places import Place, place_named
from amp_transpiler.runtime.provider_options import EXACT_FLOAT32
from amp_transpiler.verification.compare import compare_outputs
from gpu.conversions import VARIANTS, Variant, outputs_of
from gpu.records import Record, Task, Unavailable, attempt, timed
from gpu.subjects import SUBJECTS, built
from programs.sessions import Sessions, describe

__all__ = ["compiled", "inference", "torch_eager"]

TORCH_DTYPES = ("float32", "float16", "bfloat16")


def inference(task: Task) -> None:
    """Time every variant that was prepared; compare its outputs with float32 and with its emulation."""
    sessions, place = Sessions(task.folder / f"graphs.{task.name}"), place_named(task.place)
    sessions.folder.mkdir()
    if not (task.folder / f"{task.name}.feeds.npz").exists():
        raise Unavailable("it was not prepared")
    feeds = _arrays(task.folder / f"{task.name}.feeds.npz")
    for variant in VARIANTS:
        if variant.path(task.folder, task.name).exists():
            attempt(
                task,
                variant.name,
                variant.dtype,
                lambda variant=variant: _measured(task, variant, feeds, place, sessions),  # type: ignore[misc]  # bound
            )


def _measured(task: Task, variant: Variant, feeds: dict[str, np.ndarray], place: Place, sessions: Sessions) -> Record:
    path = variant.path(task.folder, task.name)
    before = place.memory_in_use()
    sessions.used.clear()
    session = amp.Session(path, place)  # in a rehearsal it is emulated: the CPU has few bfloat16 kernels
    results = outputs_of(session, feeds)
    found: Record = {"cpu_nodes": len(session.cpu_nodes), **timed(session.bind(feeds), tiny=task.tiny)}
    found["cuda_graph"] = session.cuda_graph
    after = place.memory_in_use()
    found["memory"] = None if before is None or after is None else after - before
    reference = _arrays(task.folder / f"{task.name}.fp32.float32.npz")
    if session.tf32 and multiplies_float32(path):  # which is timed, but is no error of ours
        found["error_with_tf32"] = worst(reference, results)
        with amp.Session(path, place, provider_options=EXACT_FLOAT32, cuda_graph=False) as exact:
            results = outputs_of(exact, feeds)
    found["error"] = worst(reference, results)
    emulated = task.folder / f"{task.name}.{variant.file}.npz"
    if emulated.exists() and variant.level != "fp32":
        found["error_from_emulation"] = worst(_arrays(emulated), results)
    return {**found, **predictions(task, sessions, cuda_graph=session.cuda_graph)}


def multiplies_float32(path: pathlib.Path) -> bool:
    """Whether a model has a product or a convolution in float32, which a device may compute in TF32."""
    return any(
        node.op_type in ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
        and any(value is not None and value.dtype == ir.DataType.FLOAT for value in node.inputs)
        for node in plain_copy(amp.load(path)).model.graph.all_nodes()
    )


def predictions(task: Task, sessions: Sessions, *, cuda_graph: bool = False) -> Record:
    """Return launches, bytes and the predicted time of the largest graph that ran; the graphs' files are deleted.

    A captured graph and the one that other threads run are one program, and asking for a version is another, tiny one.
    """
    described = describe(sorted(sessions.graphs(), key=lambda graph: len(graph.graph))[-1:])
    for file in sessions.folder.iterdir():
        file.unlink()
    predicted = described["predicted"].get(task.device, {})
    kept = {key: described[key] for key in ("predicted_launches", "bytes", "casts")}
    return {**kept, "predicted_ms": predicted.get("graph_ms" if cuda_graph else "ms")}


def worst(reference: dict[str, Any], result: dict[str, Any]) -> float:
    """Return the largest relative norm error of any output; infinite where one is not finite."""
    rows = compare_outputs([reference], [result]).values()
    return max(math.inf if row.nonfinite else row.relative for row in rows)


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# ---- PyTorch ----
def torch_eager(task: Task) -> None:
    """Time PyTorch's eager mode, in float32 and under autocast."""
    for dtype in TORCH_DTYPES:
        attempt(task, "torch eager", dtype, lambda dtype=dtype: _torch(task, dtype, compile_it=False))  # type: ignore[misc]


def compiled(task: Task) -> None:
    """Time `torch.compile` under autocast."""
    attempt(task, "torch.compile", "float16", lambda: _torch(task, "float16", compile_it=True))


def _torch(task: Task, dtype: str, *, compile_it: bool) -> Record:
    import torch

    device = task.place
    module, feeds = built(SUBJECTS[task.name], tiny=task.tiny)
    module = module.to(device)
    inputs = [value.to(device) for value in feeds.values()]
    call = torch.compile(module) if compile_it else module
    autocast: Any = contextlib.nullcontext()
    if dtype != "float32":
        autocast = torch.autocast(device, dtype=getattr(torch, dtype))
    before = place_named(task.place).memory_in_use()
    with torch.inference_mode(), autocast:
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        found = timed(lambda: call(*inputs), tiny=task.tiny, wait=wait)
    after = place_named(task.place).memory_in_use()
    return {**found, "memory": None if before is None or after is None else after - before}
