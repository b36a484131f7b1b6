"""The contents of a corpus folder, and those it should have."""

from __future__ import annotations

import dataclasses
import pathlib

from corpus.architectures import ARCHITECTURES
from corpus.download import PACKAGES, WEIGHT_PACKAGES

_WITHOUT_MODELS = WEIGHT_PACKAGES | {"onnx"}
SHIPPED = tuple(package.name for package in PACKAGES if package.name not in _WITHOUT_MODELS)


@dataclasses.dataclass(frozen=True)
class Models:
    """The real models of a corpus.

    Attributes:
        present: the model files.
        absent: the parts that are not there (`shipped/nudenet`) -> why, and what would help.
    """

    present: tuple[pathlib.Path, ...]
    absent: dict[str, str]


def real_models(folder: pathlib.Path | None) -> Models:
    """List the shipped and exported models of a corpus; None or no folder: everything is absent."""
    if folder is None or not folder.is_dir():
        reason = "no --corpus FOLDER was given" if folder is None else f"{folder} is no folder"
        return Models((), dict.fromkeys(("shipped", "exported"), reason))
    present: list[pathlib.Path] = []
    absent = {}
    parts = (("shipped", SHIPPED, "fetch_corpus.py"), ("exported", tuple(ARCHITECTURES), "export_corpus.py"))
    for part, expected, script in parts:
        names = {path.name for path in (folder / part).glob("*") if path.is_dir()}
        for name in sorted({*names, *expected}) if names else ():
            files = sorted((folder / part / name).glob("*.onnx"))
            present += files
            if not files:
                absent[f"{part}/{name}"] = f"not in the corpus; lab/{script} makes it"
        if not names:
            absent[part] = f"not in the corpus; lab/{script} makes it"
    return Models(tuple(present), absent)


def name_of(model: pathlib.Path) -> str:
    """Return the name that a model goes by in tables: its path inside the corpus."""
    return "/".join(model.parts[-3:])


def inputs_of(model: pathlib.Path) -> pathlib.Path:
    """Return the .npz file of inputs that belongs to a model; a shipped model has its own, exports share one."""
    samples = model.with_suffix(".inputs.npz")
    return samples if samples.exists() else model.parent / "inputs.npz"


def node_cases(folder: pathlib.Path | None) -> list[pathlib.Path]:
    """List the folders of ONNX's own node tests, empty where there is none."""
    if folder is None:
        return []
    return sorted(path.parent for path in (folder / "onnx_backend" / "node").glob("*/model.onnx"))
