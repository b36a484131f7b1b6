"""Stage "prepare", on the CPU: exports a model, converts it in every way, and computes what the results should be."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import amp_transpiler as amp
from gpu.records import Record, Task, attempt
from gpu.subjects import SUBJECTS, export

__all__ = ["VARIANTS", "Variant", "outputs", "outputs_of", "prepare"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to convert a model: its level, or the peer that does it; its format; whether it is optimized first."""

    level: str
    dtype: str
    optimized: bool = False

    @property
    def name(self) -> str:
        return f"{self.level}, --optimize" if self.optimized else self.level

    @property
    def file(self) -> str:
        return f"{self.level}.{self.dtype}{'.optimized' if self.optimized else ''}"

    def path(self, folder: pathlib.Path, model: str) -> pathlib.Path:
        return folder / f"{model}.{self.file}.onnx"


VARIANTS = (
    Variant("fp32", "float32"),
    Variant("auto", "float16"),
    Variant("auto", "float16", optimized=True),
    Variant("O2", "float16"),
    Variant("auto", "bfloat16"),
    Variant("onnxruntime", "float16"),
)
"""By worth: the first are measured where time is short."""

PEERS = ("fp32", "onnxruntime")


def prepare(task: Task) -> None:
    """Write all variants of a model, their emulated outputs and those in float32."""
    source, feeds = export(SUBJECTS[task.name], task.folder, tiny=task.tiny)
    _save(task.folder / f"{task.name}.feeds.npz", feeds)
    _save(task.folder / f"{task.name}.fp32.float32.npz", outputs(source, feeds))
    source.rename(VARIANTS[0].path(task.folder, task.name))
    source = VARIANTS[0].path(task.folder, task.name)
    for variant in VARIANTS[1:]:
        if task.variants and variant.file not in task.variants:
            continue
        attempt(task, variant.name, variant.dtype, lambda variant=variant: _converted(task, variant, source, feeds))  # type: ignore[misc]


def _converted(task: Task, variant: Variant, source: pathlib.Path, feeds: Mapping[str, np.ndarray]) -> Iterator[Record]:
    target = variant.path(task.folder, task.name)
    if variant.level in PEERS:
        yield _with_runtime(source, target)
        return
    options: dict[str, Any] = {"level": variant.level, "dtype": variant.dtype, "verify": False}
    if variant.optimized:
        options["optimize"] = True
    report = amp.transpile(source, target, **options, prefer="size")
    yield {"low_nodes": report.low_nodes, "nodes": report.nodes, "casts": report.casts}
    _save(task.folder / f"{task.name}.{variant.file}.npz", outputs(target, feeds))


def outputs(path: pathlib.Path, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what a model computes on the CPU, emulated where it is low; float32, so that numpy can write it."""
    return outputs_of(amp.Session(path, amp.CPUPlace()), feeds)


def outputs_of(session: amp.Session, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what a session computes, in float32."""
    results = session.run(feeds)
    return {info.name: np.asarray(value, np.float32) for info, value in zip(session.outputs, results, strict=True)}


def _with_runtime(source: pathlib.Path, target: pathlib.Path) -> Record:
    import onnx
    from onnxruntime.transformers import float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True))
    converted.topological_sort()  # the converter puts casts behind their readers
    onnx.save(converted.model, target)
    return {"nodes": len(converted.model.graph.node), "casts": len(converted.get_nodes_by_op_type("Cast"))}


def _save(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    np.savez(path, allow_pickle=False, **arrays)
