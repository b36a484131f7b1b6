"""The table of torch's autocast classes: that it is whole, and that the classes are torch's."""

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS
from amp_transpiler.systems.torch.classes import TORCH_CLASSES, TorchClass
from tests.support import HAS_SWIGLU

SECTION_4_1 = {
    TorchClass.LOWER_PRECISION_FP: "Conv ConvTranspose PRelu Gemm MatMul Einsum LSTM GRU RNN Attention "
    "com.microsoft::MultiHeadAttention",
    TorchClass.FP32: "Acos Asin Cosh Exp Log Reciprocal Sinh Tan Pow Softplus LayerNormalization RMSNormalization "
    "GroupNormalization LpNormalization ReduceL1 ReduceL2 ReduceLogSumExp ReduceLogSum ReduceProd ReduceSum "
    "ReduceSumSquare Softmax LogSoftmax CumSum CumProd Resize Upsample NegativeLogLikelihoodLoss "
    "SoftmaxCrossEntropyLoss",
    TorchClass.PROMOTE: "GridSample ScatterND ScatterElements",
    TorchClass.FALL_THROUGH: "Add Mul Div Equal Less Concat Relu Sigmoid Tanh Gelu ReduceMean AveragePool MaxPool "
    "BatchNormalization Dropout Reshape",
}


def float_operators():
    """Operators of ONNX's own domain that have a float tensor in some version up to opset 26."""
    for schema in onnx.defs.get_all_schemas_with_history():
        types = {t for formal in (*schema.inputs, *schema.outputs) for t in formal.types}
        if not schema.domain and schema.since_version <= 26 and any("tensor(float)" in t for t in types):
            yield schema.name


def test_every_float_operator_has_a_row():
    operators = set(float_operators())
    assert len(operators) > 150
    assert operators - TORCH_CLASSES.keys() == set(), "give each a class in operators.txt, fall_through included"


def test_every_contrib_operator_of_the_default_lists_has_a_row():
    contrib = {key for key in DEFAULT_COLOURS if "::" in key}
    assert len(contrib) > 50
    assert contrib - TORCH_CLASSES.keys() == set()


@HAS_SWIGLU
def test_every_row_names_an_operator_that_exists():
    schemas = (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema())
    known = {f"{s.domain}::{s.name}" if s.domain else s.name for s in schemas}
    assert TORCH_CLASSES.keys() - known == set()


def test_every_row_names_torchs_counterpart():
    assert [key for key, (_, reason) in TORCH_CLASSES.items() if not reason.strip()] == []


@pytest.mark.parametrize("found", TorchClass)
def test_the_classes_of_section_4_1(found):
    assert {key: TORCH_CLASSES[key][0] for key in SECTION_4_1[found].split()} == dict.fromkeys(
        SECTION_4_1[found].split(), found
    )
