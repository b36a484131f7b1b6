"""ONNX's own node tests: a model of one operator (or of its definition), with inputs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import onnx
import onnx.numpy_helper

from tests.corpus.agreement import disagreement
from tests.oracle.interpreter import Interpreter
from tests.oracle.judge import open_session, typed_feeds

NEWEST_IR = 13  # that ONNX Runtime reads
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
# Cases that ONNX Runtime computes in fp32 otherwise than ONNX expects. The oracle, which follows ONNX, judges by that.
_OTHERWISE = {
    "test_maxunpool_export_with_output_shape": "indices count in the padded output, not in the smaller one",
    "test_resize_downsample_scales_cubic_align_corners": "the last corner is that of another length",
    "test_resize_downsample_scales_linear_align_corners": "likewise",
}
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
        self._data = folder / "test_data_set_0"
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
            if (self._data / f"input_{index}.pb").exists():
                feeds[value.name] = self._read(f"input_{index}.pb", value)
        return feeds

    def _read(self, file: str, value: onnx.ValueInfoProto) -> Any:
        message, convert = _MESSAGES[value.type.WhichOneof("value")]
        return convert(message.FromString((self._data / file).read_bytes()))

    def run_fp32(self) -> list[Any] | None:
        """Run it as it is on ONNX Runtime's CPU provider; None if that provider cannot.

        Where its Python cannot pass a type (bfloat16, 4 and 8 bits), the outputs are those that ONNX expects.
        """
        try:
            session = open_session(self.model.SerializeToString())
        except Exception:  # noqa: BLE001  whatever it raises, the provider cannot run this
            return None
        values = [*session.get_inputs(), *session.get_outputs()]
        if self.name in _OTHERWISE or any(re.search(r"bfloat16|float[48]|int[24]\b", value.type) for value in values):
            return self.expected()
        try:
            return list(session.run([output.name for output in session.get_outputs()], self.feeds()))
        except Exception:  # noqa: BLE001  likewise
            return None

    def expected(self) -> list[Any]:
        """Read the outputs that ONNX expects."""
        return [self._read(f"output_{index}.pb", value) for index, value in enumerate(self.model.graph.output)]

    def disagreement(self, written: onnx.ModelProto, wanted: list[Any], limit: float) -> str:
        """Run a converted model by the oracle, and say which output is further than `limit` from fp32, and how.

        Raises:
            CannotEvaluate: the oracle does not know an operator.
        """
        got = Interpreter(written).run(typed_feeds(written, self.feeds()))
        for (name, value), w in zip(got.items(), wanted, strict=True):
            if fault := disagreement(w, value, limit, random=self.random):
                return f"output {name}: {fault}"
        return ""


def _is_float32(type_: onnx.TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        return type_.tensor_type.elem_type == onnx.TensorProto.FLOAT
    if kind in ("sequence_type", "optional_type"):
        return _is_float32(getattr(type_, kind).elem_type)
    return False
