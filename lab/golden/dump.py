"""One record a conversion: what was written, and what was decided for every node."""

from __future__ import annotations

import hashlib
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import amp_transpiler as amp
from amp_transpiler.precision.reasons import reason_of
from amp_transpiler.report.precision import kind_of

Record = dict[str, Any]

# The name of a way -> the options of `transpile` that make it.
WAYS: dict[str, dict[str, str]] = {
    **{level: {"level": level} for level in ("auto", "O0", "OD", "O1", "O2")},
    **{policy: {"policy": policy} for policy in ("torch", "raf", "mxnet")},
    **{preset: {"preset": preset} for preset in ("mp0", "mp1", "mp4", "default")},
    "mixed": {"mixed_ops": "gemm,softmax"},
}
FORMATS = ("float16", "bfloat16")


def records_of(model: pathlib.Path, repaired: bool = False, decisions_only: bool = False) -> Iterator[Record]:
    """Convert one model in every way.

    Args:
        model: an ONNX file.
        repaired: level auto alone, verified and repaired, on the inputs beside the model where there are any.
        decisions_only: float16 alone, and no file is written.
    """
    name = "/".join(model.parts[-3:])
    ways = {"auto, repaired": {"level": "auto"}} if repaired else WAYS
    for way, options in ways.items():
        for dtype in FORMATS[:1] if decisions_only else FORMATS:
            yield {"model": name, "way": way, "dtype": dtype} | _converted(
                model, options | {"dtype": dtype}, repaired, not decisions_only
            )


def _converted(model: pathlib.Path, options: dict[str, str], verify: bool, write: bool) -> Record:
    data = model.with_suffix(".inputs.npz")
    data = data if data.exists() else model.parent / "inputs.npz"
    chosen: dict[str, Any] = dict(options)
    with tempfile.TemporaryDirectory(prefix="golden-", dir=_scratch()) as folder:
        destination = pathlib.Path(folder) / "low.onnx"
        try:
            report = amp.transpile(
                model,
                destination if write else None,
                verify=verify,
                inputs=data if verify and data.exists() else None,
                **chosen,
                prefer="size",
            )
        except amp.CheckFailed as error:
            return {"error": "CheckFailed"} | _decided(error.report)
        except amp.AmpError as error:
            return {"error": type(error).__name__}
        return {"sha256": digest(pathlib.Path(folder)) if write else None} | _decided(report)


def _scratch() -> str | None:
    """A folder in memory, where there is one: most of the time would go into writing weights."""
    return "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of ours is made in it


def _decided(report: amp.Report) -> Record:
    reasons: dict[str, int] = {}
    nodes = [
        (row.name, row.op, kind_of(row.precision), reasons.setdefault(row.reason, len(reasons)))
        for row in report.decisions
    ]
    codes = [reason_of(reason).code for reason in reasons]
    record = {"casts": report.casts, "opset": list(report.opset), "nodes": nodes}
    return {**record, "reasons": list(reasons), "codes": codes}


def digest(folder: pathlib.Path) -> str:
    """The SHA-256 of the files of a folder, names and contents."""
    hashed = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        hashed.update(file.name.encode())
        with file.open("rb") as stream:
            hashed.update(hashlib.file_digest(stream, "sha256").digest())
    return hashed.hexdigest()
