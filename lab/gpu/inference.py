"""Stages "inference" (ONNX Runtime, every variant of a model), "torch" and "compiled" (PyTorch, eager and compiled)."""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.runtime.places import Place, place_named
from amp_transpiler.runtime.provider_options import EXACT_FLOAT32
from amp_transpiler.verification.compare import compare_outputs
from gpu.conversions import VARIANTS, Variant, outputs_of
from gpu.kernels import kernels
from gpu.records import Record, Task, Unavailable, attempt, timed
from gpu.subjects import SUBJECTS, built
from programs.sessions import Sessions, describe

__all__ = ["compiled", "inference", "megabytes", "predictions", "torch_eager"]

COSTLIEST = 14


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


def _measured(
    task: Task, variant: Variant, feeds: dict[str, np.ndarray], place: Place, sessions: Sessions
) -> Iterator[Record]:
    path = variant.path(task.folder, task.name)
    before = place.memory_in_use()
    sessions.used.clear()
    session = amp.Session(path, place)  # in a rehearsal it is emulated: the CPU has few bfloat16 kernels
    results = outputs_of(session, feeds)
    yield {"cpu_nodes": len(session.cpu_nodes), **timed(session.bind(feeds), tiny=task.tiny)}
    yield {"cuda_graph": session.cuda_graph, "memory_mb": megabytes(before, place.memory_in_use())}
    yield _errors(task, variant, feeds, session, results)
    if task.place == "cuda":
        with amp.Session(path, place, cuda_graph=False) as plain:
            run = plain.bind(feeds)
            yield {"no_graph": timed(run, tiny=task.tiny, seconds=0.4)}
            yield kernels(task, run, costliest=COSTLIEST)
    yield predictions(task, sessions, cuda_graph=session.cuda_graph)


def _errors(
    task: Task, variant: Variant, feeds: dict[str, np.ndarray], session: amp.Session, results: dict[str, np.ndarray]
) -> Record:
    path, errors = variant.path(task.folder, task.name), Record()
    reference = _arrays(task.folder / f"{task.name}.fp32.float32.npz")
    if session.tf32 and multiplies_float32(path):  # which is timed, but is no error of ours
        errors["error_with_tf32"] = worst(reference, results)
        with amp.Session(path, session.place, provider_options=EXACT_FLOAT32, cuda_graph=False) as exact:
            results = outputs_of(exact, feeds)
            errors["exact_ms"] = timed(exact.bind(feeds), tiny=task.tiny, seconds=0.3)["ms"]
    errors["error"] = worst(reference, results)
    emulated = task.folder / f"{task.name}.{variant.file}.npz"
    if emulated.exists() and variant.level != "fp32":
        errors["error_from_emulation"] = worst(_arrays(emulated), results)
    return errors


def megabytes(before: int | None, after: int | None) -> float | None:
    """Return what a device's memory grew by; None where it is unknown."""
    return None if before is None or after is None else round((after - before) / 2**20, 1)


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
    copied = {key: described[key] for key in ("predicted_launches", "bytes", "casts")}
    return {**copied, "predicted_ms": predicted.get("graph_ms" if cuda_graph else "ms")}


def worst(reference: dict[str, Any], result: dict[str, Any]) -> float:
    """Return the largest relative norm error of any output; infinite where one is not finite."""
    rows = compare_outputs([reference], [result]).values()
    return max(math.inf if row.nonfinite else row.relative for row in rows)


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# ---- PyTorch ----
def torch_eager(task: Task) -> None:
    """Time PyTorch's eager mode: in float32, under autocast, and with all of the model in float16."""
    for variant, dtype in (("torch eager", "float32"), ("torch eager", "float16"), ("torch eager, .half()", "float16")):
        if not variant.endswith("()") or task.place == "cuda":  # on a CPU that takes long, and tells nothing
            attempt(task, variant, dtype, lambda variant=variant, dtype=dtype: _torch(task, variant, dtype))  # type: ignore[misc]


def compiled(task: Task) -> None:
    """Time `torch.compile` under autocast."""
    attempt(task, "torch.compile", "float16", lambda: _torch(task, "torch.compile", "float16"))


def _torch(task: Task, variant: str, dtype: str) -> Iterator[Record]:
    import torch

    module, feeds = built(SUBJECTS[task.name], tiny=task.tiny)
    module, inputs = module.to(task.place), [value.to(task.place) for value in feeds.values()]
    halved = variant.endswith(".half()")
    if halved:
        module = module.half()
        inputs = [value.half() if value.is_floating_point() else value for value in inputs]
    call = torch.compile(module) if variant == "torch.compile" else module
    autocast: Any = contextlib.nullcontext()
    if dtype != "float32" and not halved:
        autocast = torch.autocast(task.place, dtype=getattr(torch, dtype))
    place = place_named(task.place)
    before = place.memory_in_use()
    with torch.inference_mode(), autocast:
        wait = torch.cuda.synchronize if task.place == "cuda" else lambda: None
        yield timed(lambda: call(*inputs), tiny=task.tiny, wait=wait, seconds=0.6)
        yield {"memory_mb": megabytes(before, place.memory_in_use())}
        yield kernels(task, lambda: call(*inputs), wait, costliest=COSTLIEST)
