"""The models that faults are planted into: small graphs, the repository's, and those of a corpus."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

import numpy as np
import onnx
from onnx import TensorProto

from planted_faults.editing import Place, name_nodes, opset_of
from planted_faults.running import Arrays, activations, outputs_of
from planted_faults.small_nets import SMALL_NETS

__all__ = ["Source", "sources"]

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
_LARGEST = 13e6  # bytes of a file
_LEAST_OPSET, _LEAST_NODES = 13, 5
_LARGEST_PLACE, _SMALLEST_PLACE = 300_000, 32  # elements

# Of several files of one network, one or two: otherwise the draw would be of that network most of the time.
_CORPUS = (
    "exported/lstm_tagger/dynamo.onnx",
    "exported/paddle_lenet/torchscript_raw.onnx",
    "exported/small_decoder/dynamo.onnx",
    "exported/small_detector/dynamo.onnx",
    "exported/small_encoder/dynamo.onnx",
    "exported/small_encoder/torchscript.onnx",
    "exported/small_messages/torchscript.onnx",
    "exported/small_speech/dynamo.onnx",
    "exported/small_unet/dynamo.onnx",
    "exported/small_unet/torchscript.onnx",
    "shipped/arabic-name-romanizer/resources__persian__encoder.onnx",
    "shipped/arabic-name-romanizer/resources__persian__decoder.onnx",
    "shipped/basic-pitch/nmp.onnx",
    "shipped/magika/model.onnx",
    "shipped/nudenet/320n.onnx",
    "shipped/silero-vad/silero_vad_16k_sequence.onnx",
    "shipped/silero-vad/silero_vad_openvino_16k.onnx",
    "shipped/swift-f0/model.onnx",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A model, loaded when it is asked for.

    Attributes:
        name: a short name.
        path: its file; None for one of `SMALL_NETS`.
    """

    name: str
    path: pathlib.Path | None = None

    @functools.cached_property
    def _loaded(self) -> tuple[onnx.ModelProto, Arrays]:
        if self.path is None:
            model, sample = SMALL_NETS[self.name]()
        else:
            model, beside = onnx.load(self.path), self.path.with_suffix(".inputs.npz")
            with np.load(beside if beside.exists() else self.path.with_name("inputs.npz")) as arrays:
                sample = {name: arrays[name] for name in arrays.files}
        name_nodes(model)
        return model, sample

    @property
    def model(self) -> onnx.ModelProto:
        """The model; it is not to be changed."""
        return self._loaded[0]

    @property
    def sample(self) -> Arrays:
        """What is fed."""
        return self._loaded[1]

    @functools.cached_property
    def fault(self) -> str:
        """Why no fault can be planted into it; empty if one can."""
        if self.path is not None and self.path.stat().st_size > _LARGEST:
            return "too large"
        model = self.model
        fed = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
        if model.functions or any(
            part.type == onnx.AttributeProto.GRAPH for n in model.graph.node for part in n.attribute
        ):
            return "functions or bodies"
        if len(model.graph.node) < _LEAST_NODES or opset_of(model) < _LEAST_OPSET:
            return "too few nodes or too old an opset"
        if fed - set(self.sample):
            return "no sample"
        return ""

    @functools.cached_property
    def reference(self) -> Arrays:
        """Its outputs."""
        return outputs_of(self.model, self.sample)

    @functools.cached_property
    def places(self) -> list[Place]:
        """The values behind which a fault can be planted, in the order of execution."""
        arrays = activations(self.model, self.sample)
        return [Place(name, array) for name, array in arrays.items() if _is_fit(array)]

    @functools.cached_property
    def inputs(self) -> list[Place]:
        """The float inputs of the model."""
        floats = [v.name for v in self.model.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT]
        return [Place(name, self.sample[name]) for name in floats if name in self.sample and _is_fit(self.sample[name])]


def _is_fit(array: np.ndarray) -> bool:
    if array.ndim < 2 or not _SMALLEST_PLACE <= array.size <= _LARGEST_PLACE or not np.isfinite(array).all():
        return False
    return bool(1e-3 <= np.abs(array).max() <= 1e4) and array.shape[-1] >= 8


def sources(corpus: pathlib.Path | None) -> list[list[Source]]:
    """Return the models in groups that are drawn equally often: small graphs, the repository's, those of a corpus."""
    groups = [
        [Source(name) for name in SMALL_NETS],
        [Source(path.stem, path) for path in sorted(MODELS.glob("*.onnx"))],
    ]
    named = [] if corpus is None else [corpus / name for name in _CORPUS]
    for folder in ("exported", "shipped"):
        paths = [path for path in named if path.exists() and path.parents[1].name == folder]
        groups.append([Source(f"{path.parent.name}_{path.stem}", path) for path in paths])
    return [group for group in groups if group]
