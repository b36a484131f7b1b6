"""One export of one architecture: the file, its inputs and eager outputs, and ONNX Runtime against eager PyTorch."""

from __future__ import annotations

import logging
import os
import pathlib
import time
import warnings
from typing import Any

import numpy as np

from corpus.architectures import ARCHITECTURES, Architecture, Built
from corpus.facts import facts
from corpus.torch_tools import SEED, to_numpy

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

Record = dict[str, Any]


def export_one(root: pathlib.Path, name: str, exporter: str) -> Record:
    """Export the architecture `name` under `root/exported/name`; return its record for the manifest."""
    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    architecture = ARCHITECTURES[name]
    folder = root / "exported" / name
    folder.mkdir(parents=True, exist_ok=True)
    built = architecture.build(root)
    with torch.no_grad():
        result = built.module(*built.inputs.values())
    wanted = [result] if isinstance(result, torch.Tensor) else list(result)
    _save(folder / "inputs.npz", built.inputs)
    _save(folder / "torch_outputs.npz", dict(zip(built.outputs, wanted, strict=False)))
    path = folder / f"{exporter}.onnx"
    record: Record = {"name": name, "exporter": exporter}
    start = time.perf_counter()
    with torch.no_grad():
        record.update(_export(architecture, built, exporter, path))
    record["export_s"] = round(time.perf_counter() - start, 1)
    record["path"] = path.relative_to(root).as_posix()
    try:
        record.update(_compare(path, built, wanted))
    except Exception as error:  # noqa: BLE001  a model that ONNX Runtime refuses is still exported
        record["ort"] = str(error)[:250]
    return {**record, **facts(path)}


def _save(path: pathlib.Path, tensors: dict[str, Any]) -> None:
    arrays = {name: to_numpy(tensor) for name, tensor in tensors.items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # its keywords are arrays by name


def _export(architecture: Architecture, built: Built, exporter: str, path: pathlib.Path) -> Record:
    if exporter == "ortfused":
        _fuse_as_ort_does(path)
        return {"shapes": "dynamic"}
    notes = []
    for shapes in ("dynamic", "static") if built.dynamic else ("static",):
        dynamic = shapes == "dynamic"
        try:
            if exporter.startswith("dynamo"):
                external = architecture.external_data
                export_dynamo(built, path, _opset(exporter), dynamic, not exporter.endswith("_raw"), external)
            else:
                export_torchscript(built, path, dynamic=dynamic, raw=exporter.endswith("_raw"))
        except Exception as error:  # noqa: BLE001  static shapes are tried next
            notes.append(f"{shapes}: {type(error).__name__}: {str(error)[:160]}")
        else:
            return {"shapes": shapes, **({"notes": notes} if notes else {})}
    raise RuntimeError(" | ".join(notes))


def _opset(exporter: str) -> int | None:
    return int(exporter.removeprefix("dynamo_op")) if exporter.startswith("dynamo_op") else None


def _fuse_as_ort_does(path: pathlib.Path) -> None:
    from onnxruntime.transformers import optimizer

    source = str(path.with_name("torchscript.onnx"))
    fused = optimizer.optimize_model(source, model_type="bert", num_heads=12, hidden_size=384, opt_level=0)
    fused.save_model_to_file(str(path))


def export_dynamo(
    built: Built,
    path: pathlib.Path,
    opset: int | None,
    dynamic: bool,
    optimize: bool,
    external_data: bool,
) -> None:
    """Export through torch.export."""
    import torch

    extra: dict[str, Any] = {}
    if dynamic:
        free = torch.export.Dim.DYNAMIC
        axes: Any = tuple(dict.fromkeys(built.dynamic.get(name, {}), free) or None for name in built.inputs)
        # forward(*tensors): the varargs count as one argument.
        extra["dynamic_shapes"] = (axes,) if getattr(built.module, "takes_varargs", False) else axes
    torch.onnx.export(
        built.module,
        tuple(built.inputs.values()),
        str(path),
        dynamo=True,
        external_data=external_data,
        verbose=False,
        optimize=optimize,
        opset_version=opset,
        input_names=list(built.inputs),
        output_names=built.outputs,
        **extra,
    )


def export_torchscript(built: Built, path: pathlib.Path, *, dynamic: bool, raw: bool) -> None:
    """Export through the tracing exporter, at opset 17; `raw` keeps BatchNormalization and unfolded constants."""
    import torch

    training = torch.onnx.TrainingMode
    torch.onnx.export(
        built.module,
        tuple(built.inputs.values()),
        str(path),
        dynamo=False,
        opset_version=17,
        dynamic_axes=built.dynamic if dynamic else None,
        do_constant_folding=not raw,
        training=training.PRESERVE if raw else training.EVAL,
        input_names=list(built.inputs),
        output_names=built.outputs,
    )


def _compare(path: pathlib.Path, built: Built, wanted: list[Any]) -> Record:
    """ONNX Runtime against eager PyTorch: the largest error, relative to the largest value."""
    import onnxruntime as ort
    import torch

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    have = {argument.name for argument in session.get_inputs()}
    if any(tensor.dtype == torch.bfloat16 for tensor in built.inputs.values()):
        return {"ort": "loads; bf16 inputs need OrtValue, not run"}
    start = time.perf_counter()
    outputs = session.run(None, {name: to_numpy(value) for name, value in built.inputs.items() if name in have})
    record: Record = {"ort": "ok", "ort_s": round(time.perf_counter() - start, 3)}
    worst, finite, trivial = 0.0, True, True
    for got, want in zip(outputs, wanted, strict=False):
        expected, actual = to_numpy(want).astype(np.float64), np.asarray(got, dtype=np.float64)
        finite &= bool(np.isfinite(actual).all())
        trivial &= bool(actual.std() < 1e-7)
        same_shape = actual.shape == expected.shape
        error = np.abs(actual - expected).max() / (np.abs(expected).max() + 1e-12) if same_shape else np.nan
        worst = max(worst, float(error))
    record.update(rel_to_max_err=float(f"{worst:.3g}"), finite=finite, nontrivial=not trivial)
    dropped = sorted(set(built.inputs) - have)
    return {**record, "inputs_dropped": dropped} if dropped else record
