"""The models that mutants are made of: small ones from text, the committed ones, and those of a folder."""

from __future__ import annotations

import dataclasses
import pathlib
import zlib

import numpy as np
import onnx

from fuzzing.seed_models import SEED_TEXTS, SeedText

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
DATA_NAME = "weights.bin"
_LARGEST = 300_000  # bytes of a seed from a folder, data files included: larger ones slow everything down


@dataclasses.dataclass(frozen=True, slots=True)
class Seed:
    """A model's serialized message, and the data files that it names."""

    name: str
    data: bytes
    files: dict[str, bytes]

    def model(self) -> onnx.ModelProto:
        """Parse a new copy of the message."""
        model: onnx.ModelProto = onnx.ModelProto.FromString(self.data)
        return model


def all_seeds(corpus: pathlib.Path | None = None) -> list[Seed]:
    """Return every seed in a stable order; those of `corpus` come last."""
    seeds = [_from_text(name, text) for name, text in SEED_TEXTS.items()]
    seeds += [Seed(file.stem, file.read_bytes(), {}) for file in sorted(MODELS.glob("*.onnx"))]
    if corpus is not None:
        seeds += _from_folder(corpus)
    return seeds


def _from_text(name: str, text: SeedText) -> Seed:
    header = f'<ir_version: {text.ir_version}, opset_import: ["": {text.opset}{text.imports}]>'
    model = onnx.parser.parse_model(f"{header} agraph {text.graph} {text.functions}")
    random = np.random.default_rng(zlib.crc32(name.encode()))
    for weight, values in text.weights.items():
        array = (
            (random.normal(size=values) * 0.3).astype(np.float32) if isinstance(values, tuple) else np.asarray(values)
        )
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, weight))
    files = _externalised(model) if text.external else {}
    return Seed(name, model.SerializeToString(deterministic=True), files)


def _externalised(model: onnx.ModelProto) -> dict[str, bytes]:
    """Move the initializers' bytes into a data file, and return it."""
    data = b""
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", DATA_NAME), ("offset", str(len(data))), ("length", str(len(raw)))):
            tensor.external_data.add(key=key, value=value)
        data += raw
    return {DATA_NAME: data}


def _from_folder(folder: pathlib.Path) -> list[Seed]:
    """Read the small models of a folder, each with the data files beside it that it names."""
    seeds = []
    for file in sorted(folder.rglob("*.onnx")):
        if file.stat().st_size <= _LARGEST:
            seed = _from_file(file, str(file.relative_to(folder)))
            if seed is not None:
                seeds.append(seed)
    return seeds


def _from_file(file: pathlib.Path, name: str) -> Seed | None:
    data = file.read_bytes()
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # noqa: BLE001  (each implementation of protobuf has a DecodeError of its own)
        return None
    locations = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    files = {location: file.parent / location for location in locations}
    if any(not path.is_file() for path in files.values()):
        return None
    if len(data) + sum(path.stat().st_size for path in files.values()) > _LARGEST:
        return None
    return Seed(name, data, {location: path.read_bytes() for location, path in files.items()})
