"""The real CUDA provider, asked without a GPU: a converted model leaves no more nodes on the CPU than its source."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

import amp_transpiler as amp
from tests.corpus.files import name_of
from tests.placing import Place

pytestmark = pytest.mark.slow

_REFUSED_SOURCES = {
    "exported/convmodel_bf16_already/dynamo_op22.onnx": "wrong on purpose: convolutions of bfloat16 with float32",
}
# Nodes that may be added on the CPU, all of them about sizes that the exporter computes with: casts of the square root
# of one, which stay with it, and Gathers that a fusion of ONNX Runtime takes out of the source alone. Or the sizes of
# an attention whose samples and rows are both unknown, asked once for all that read rows as they lie.
_ADDED = {
    "exported/small_encoder/torchscript.onnx": {"Cast": 2, "Gather": 2},
    "shipped/rapidocr/PP-OCRv6_rec_small.onnx": {"Gather": 2, "Concat": 1},
}

WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "O2": {"level": "O2"},
    "torch": {"policy": "torch"},
    "raf": {"policy": "raf"},
    "mxnet": {"policy": "mxnet"},
    "mp1": {"preset": "mp1"},
    "mp4": {"preset": "mp4"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_more_nodes_on_the_cpu(
    model: pathlib.Path,
    dtype: str,
    place: Place,
    tmp_path: pathlib.Path,
    record_property: Callable[[str, object], None],
) -> None:
    name, start = name_of(model), time.perf_counter()
    if name in _REFUSED_SOURCES:
        assert "error" in place(model)[str(model)], f"{name} is placed: take it out of _REFUSED_SOURCES"
        return
    results = {way: tmp_path / f"{way}.onnx" for way in WAYS}
    try:
        for way, path in results.items():
            amp.transpile(model, path, dtype=dtype, verify=False, **WAYS[way], prefer="size")
        placed = place(model, *results.values())
    finally:
        shutil.rmtree(tmp_path)  # pytest keeps folders of three runs, and these are gigabytes
    source = placed[str(model)]
    assert "error" not in source, source
    before = sum(source["cpu"].values())
    faults, told = [], [f"{before} nodes on the CPU in float32"]
    for way, path in results.items():
        result = placed[str(path)]
        if "error" in result:
            faults.append(f"{way}: session refused: {result['error']}")
            continue
        after = sum(result["cpu"].values())
        told.append(f"{after} by {way}")
        if after > before + _excused(name, source["cpu"], result["cpu"]):
            added = [node for node in result["cpu_nodes"] if node not in source["cpu_nodes"]]
            faults.append(f"{way}: {after} nodes on the CPU instead of {before}, among them {added[:10]}")
    record_property("summary", f"{', '.join(told)}, {time.perf_counter() - start:.1f} s")
    assert not faults, "\n".join(faults)


def _excused(name: str, before: dict[str, int], after: dict[str, int]) -> int:
    """Count the nodes on the CPU, by operator, that the table lets a model have beyond its source's."""
    allowed = _ADDED.get(name, {})
    return sum(max(0, min(count, after.get(op, 0) - before.get(op, 0))) for op, count in allowed.items())
