"""ONNX's own node tests: a model of one operator (or of its definition), with inputs."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import onnx
import onnx.numpy_helper
import onnxruntime as ort

import amp_transpiler as amp
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.values import run_session
from tests.corpus.agreement import disagreement

NEWEST_IR = 13  # that ONNX Runtime reads
_ANY_OPSET = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # 0: ONNX Runtime reads opsets that it does not know in full
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_MESSAGES = {
    "tensor_type": (onnx.TensorProto, onnx.numpy_helper.to_array),
    "sequence_type": (onnx.SequenceProto, onnx.numpy_helper.to_list),
    "optional_type": (onnx.OptionalProto, onnx.numpy_helper.to_optional),
}


class OnnxCase:
    """A node test of ONNX.

    Attributes:
        folder: where it lies.
        name: what ONNX calls it.
        model: the model, its IR version lowered to what ONNX Runtime reads.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.name = folder, folder.name
        self.model = onnx.load(folder / "model.onnx")
        self.model.ir_version = min(self.model.ir_version, NEWEST_IR)

    @property
    def has_float32(self) -> bool:
        """Whether an input or output is float32, or a sequence or optional of it."""
        return any(_is_float32(value.type) for value in (*self.model.graph.input, *self.model.graph.output))

    @property
    def random(self) -> bool:
        """Whether it draws random numbers, which other types draw otherwise."""
        # A Dropout has a third input, training_mode, in the tests of its training alone.
        return any(
            node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) == 3)
            for node in self.model.graph.node
        )

    def feeds(self) -> dict[str, Any]:
        """Read the inputs; those without a file are left to their defaults."""
        feeds = {}
        for index, value in enumerate(self.model.graph.input):
            file = self.folder / "test_data_set_0" / f"input_{index}.pb"
            if file.exists():
                message, convert = _MESSAGES[value.type.WhichOneof("value")]
                feeds[value.name] = convert(message.FromString(file.read_bytes()))
        return feeds

    def run_fp32(self) -> list[Any] | None:
        """Run it as it is on ONNX Runtime's CPU provider; None if that provider cannot."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        before = os.environ.get(_ANY_OPSET)
        os.environ[_ANY_OPSET] = "0"
        try:
            message = self.model.SerializeToString()
            session = ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
            return run_session(session, self.feeds(), [output.name for output in session.get_outputs()])
        except ORT_ERRORS:
            return None
        finally:
            del os.environ[_ANY_OPSET]
            if before is not None:
                os.environ[_ANY_OPSET] = before

    def disagreement(self, program: amp.Program, wanted: list[Any], limit: float) -> str:
        """Run a converted program, emulated, and say which output is further than `limit` from fp32, and how."""
        got = amp.Session(program, amp.CPUPlace()).run(self.feeds())
        for value, w, g in zip(self.model.graph.output, wanted, got, strict=True):
            if fault := disagreement(w, g, limit, random=self.random):
                return f"output {value.name}: {fault}"
        return ""


def _is_float32(type_: onnx.TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        return type_.tensor_type.elem_type == onnx.TensorProto.FLOAT
    if kind in ("sequence_type", "optional_type"):
        return _is_float32(getattr(type_, kind).elem_type)
    return False
