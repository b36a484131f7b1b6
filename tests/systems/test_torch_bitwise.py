"""Policy `torch`, bit by bit, against casts that are written by hand.

An operator of class lower_precision_fp is its control with a Cast to low before every float input and a Cast back
behind it; one of class fp32 that a low product feeds is its control with a Cast to float32 between. Weights that
become low are rounded by numpy in the control. Both are run emulated, since ONNX Runtime's CPU provider drops
roundings. A second control does not go through the package: it is a float32 graph with pairs of casts.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.systems.torch.classes import TORCH_CLASSES, TorchClass
from amp_transpiler.targets import CUDA
from tests.support import LOW_NAMES, NUMPY, array, assert_valid, casts, nodes, parse, run, run_emulated

MS = ', "com.microsoft": 1'
DTYPES = ("float16", "bfloat16")
TO_LOW = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}


def rounded(values, dtype):
    """Round float32 numbers to the low format; anything else stays."""
    return values.astype(NUMPY[dtype]) if values.dtype == np.float32 else values


def of_class(kind):
    """List ONNX's own operators of a class."""
    return {key for key, (listed, _) in TORCH_CLASSES.items() if listed is kind and "::" not in key}


def has_kernel(key, dtype):
    domain, _, op_type = key.rpartition("::")
    return CUDA.table.mentions(domain, op_type, dtype)


def converted(model, dtype):
    report = amp.transpile(model, policy="torch", dtype=dtype, keep_io_types=True, verify=False)
    assert_valid(report.program)
    return report.program


def assert_same_bits(expected, found):
    assert expected.dtype == found.dtype
    assert expected.shape == found.shape
    assert expected.tobytes() == found.tobytes()


# ---- each operator of class lower_precision_fp ----


@dataclasses.dataclass(frozen=True)
class Low:
    """An operator alone: its call of `{x}`, which is fed, and of weights; shapes of x and of its result."""

    call: str
    x: str
    y: str
    weights: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    opset: int | None = None

    def graph(self, dtype, before="", of="x", behind="", to="y"):
        text = f"(float[{self.x}] x) => (float[{self.y}] y) {{ {before} {to} = {self.call.format(x=of)} {behind} }}"
        # Conv has bfloat16 from opset 22 on.
        opset = self.opset or (22 if dtype == "bfloat16" else 18)
        return lambda weights: parse(text, opset=opset, imports=MS, **weights)

    def source(self, dtype):
        return self.graph(dtype)(self.weights)

    def control(self, dtype):
        """Every float tensor low, between two casts."""
        low = TO_LOW[dtype]
        graph = self.graph(dtype, f"lx = Cast <to = {low}> (x)", "lx", "y = Cast <to = 1> (ly)", "ly")
        return graph({name: rounded(values, dtype) for name, values in self.weights.items()})

    def float32_control(self, dtype):
        """The float32 operator between two pairs of casts."""
        down, up = f"Cast <to = {TO_LOW[dtype]}>", "Cast <to = 1>"
        graph = self.graph(dtype, f"dx = {down} (x) ux = {up} (dx)", "ux", f"dy = {down} (py) y = {up} (dy)", "py")
        return graph({name: rounded(v, dtype).astype(v.dtype) for name, v in self.weights.items()})


SQUARE = {"w": array(4, 5, seed=1), "b": array(5, seed=2)}
W, WB = {"w": SQUARE["w"]}, SQUARE
LOWER_PRECISION = {
    "Conv": Low("Conv <pads = [1, 1, 1, 1]> ({x}, w, b)", "1,4,5,5", "1,5,5,5", {"w": array(5, 4, 3, 3), "b": WB["b"]}),
    "ConvTranspose": Low("ConvTranspose ({x}, w)", "1,4,4,4", "1,2,5,5", {"w": array(4, 2, 2, 2)}),
    "MatMul": Low("MatMul ({x}, w)", "2,3,4", "2,3,5", W),
    "Gemm": Low("Gemm <alpha = 0.7, beta = 0.3> ({x}, w, b)", "3,4", "3,5", WB),
    "Einsum": Low('Einsum <equation = "ij,jk->ik"> ({x}, w)', "3,4", "3,5", W),
    "LSTM": Low(
        "LSTM <hidden_size = 3> ({x}, w, r, b)",
        "5,2,4",
        "5,1,2,3",
        {"w": array(1, 12, 4), "r": array(1, 12, 3), "b": array(1, 24)},
    ),
    "GRU": Low(
        "GRU <hidden_size = 3, linear_before_reset = 1> ({x}, w, r)",
        "5,2,4",
        "5,1,2,3",
        {"w": array(1, 9, 4), "r": array(1, 9, 3)},
    ),
    "RNN": Low("RNN <hidden_size = 3> ({x}, w, r)", "5,2,4", "5,1,2,3", {"w": array(1, 3, 4), "r": array(1, 3, 3)}),
    "PRelu": Low("PRelu ({x}, s)", "3,4", "3,4", {"s": array(4, low=0.1)}),
    "Attention": Low("Attention ({x}, {x}, {x})", "1,2,4,8", "1,2,4,8", opset=23),
    "com.microsoft::FusedMatMul": Low("com.microsoft.FusedMatMul <alpha = 0.7> ({x}, w)", "3,4", "3,5", W),
    "com.microsoft::TransposeMatMul": Low("com.microsoft.TransposeMatMul ({x}, w)", "3,4", "3,5", W),
    "com.microsoft::MultiHeadAttention": Low(
        "com.microsoft.MultiHeadAttention <num_heads = 2> ({x}, {x}, {x})", "1,4,8", "1,4,8"
    ),
    "com.microsoft::Attention": Low(
        "com.microsoft.Attention <num_heads = 2> ({x}, w, b)", "1,4,8", "1,4,8", {"w": array(8, 24), "b": array(24)}
    ),
}
PAIRS = [(key, dtype) for key in LOWER_PRECISION for dtype in DTYPES]


def fed(model):
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": array(*dims, seed=7)}


@pytest.mark.parametrize(("key", "dtype"), [pair for pair in PAIRS if has_kernel(*pair)])
def test_a_low_operator_is_its_control_bit_by_bit(key, dtype):
    case = LOWER_PRECISION[key]
    model = case.source(dtype)
    program, feeds, low = converted(model, dtype), fed(model), LOW_NAMES[dtype]
    (node,) = nodes(program, key.rpartition("::")[2])
    assert {value.dtype.name for value in (*node.inputs, node.outputs[0]) if value is not None} == {low}
    assert [cast[1:] for cast in casts(program)] == [("FLOAT", low), (low, "FLOAT")]
    result = run_emulated(program, feeds)["y"]
    assert_same_bits(run_emulated(case.control(dtype), feeds)["y"], result)
    assert_same_bits(run(case.float32_control(dtype), feeds)["y"], result)
    assert not np.array_equal(run(model, feeds)["y"], result), "these numbers would not show a rounding"


@pytest.mark.parametrize(("key", "dtype"), [pair for pair in PAIRS if not has_kernel(*pair)])
def test_without_a_kernel_of_the_format_the_operator_stays_float32(key, dtype):
    model = LOWER_PRECISION[key].source(dtype)
    program = converted(model, dtype)
    assert casts(program) == []
    assert_same_bits(run(model, fed(model))["y"], run(program, fed(model))["y"])


def test_every_low_operator_of_onnx_with_a_cuda_kernel_has_a_control():
    expected = {key for key in of_class(TorchClass.LOWER_PRECISION_FP) if has_kernel(key, "float16")}
    assert expected == {key for key in LOWER_PRECISION if "::" not in key}


# ---- the same, against torch's own autocast ----

# What torch calls the operator, given torch, x and the weights by name.
IN_TORCH = {
    "Conv": lambda torch, x, w: torch.nn.functional.conv2d(x, w["w"], w["b"], padding=1),
    "ConvTranspose": lambda torch, x, w: torch.nn.functional.conv_transpose2d(x, w["w"]),
    "MatMul": lambda torch, x, w: x @ w["w"],
    "Gemm": lambda torch, x, w: torch.addmm(w["b"], x, w["w"], alpha=0.7, beta=0.3),
    "Einsum": lambda torch, x, w: torch.einsum("ij,jk->ik", x, w["w"]),
    "Attention": lambda torch, x, w: torch.nn.functional.scaled_dot_product_attention(x, x, x),
    "com.microsoft::FusedMatMul": lambda torch, x, w: torch.addmm(torch.zeros(5), x, w["w"], alpha=0.7, beta=0.0),
    "com.microsoft::TransposeMatMul": lambda torch, x, w: x @ w["w"],
}
# torch rounds the four products that meet in an element, and the probabilities.
ROUNDED_INSIDE = {"ConvTranspose": 4, "Attention": 1}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the largest relative error of one rounding


@pytest.mark.parametrize(("key", "dtype"), [(key, dtype) for key in IN_TORCH for dtype in DTYPES])
def test_a_low_operator_is_torchs_own(key, dtype):
    """`torch.autocast("cpu")` casts these as it does for CUDA. It may sum in another order, hence the one unit."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it is the reference")
    case = LOWER_PRECISION[key]
    model = case.source(dtype)
    weights = {name: torch.from_numpy(value) for name, value in case.weights.items()}
    with torch.no_grad(), torch.autocast("cpu", getattr(torch, dtype)):
        expected = IN_TORCH[key](torch, torch.from_numpy(fed(model)["x"]), weights)
    assert expected.dtype == getattr(torch, dtype)
    result, expected = run_emulated(converted(model, dtype), fed(model))["y"], expected.float().numpy()
    assert result.dtype == np.float32
    inner = ROUNDED_INSIDE.get(key, 0) + 2.0**-10
    limit = UNIT[dtype] * (2 * np.abs(expected) + inner * np.abs(expected).max())
    assert (np.abs(result - expected) <= limit).all()


# ---- each operator of class fp32, fed by a low product ----


@dataclasses.dataclass(frozen=True)
class Fp32:
    """An operator behind a product: its call of `{l}`, its result, and the opset it needs.

    `{l}` is as large as x, a matrix or an image, and has elements in (0, 1).
    """

    call: str
    y: str = "float[4,4]"
    opset: int = 20
    x: str = "4,4"

    def graph(self, dtype=None):
        """The source, or the control of a format: a cast to it before the product, and one to float32 behind it."""
        body = f"l = MatMul (x, w) y = {self.call.format(l='l')}"
        if dtype is not None:
            casted = f"lx = Cast <to = {TO_LOW[dtype]}> (x) l = MatMul (lx, w) h = Cast <to = 1> (l)"
            body = f"{casted} y = {self.call.format(l='h')}"
        text = f"(float[{self.x}] x) => ({self.y} y) {{ {body} }}"
        weights = {name: WEIGHTS[name] for name in re.findall(r"\w+", self.call) if name in WEIGHTS}
        return parse(text, opset=self.opset, imports=MS, **weights, w=W4 if dtype is None else rounded(W4, dtype))

    def feeds(self):
        return {"x": array(*map(int, self.x.split(",")), seed=7, low=0.1, scale=0.9)}


def image(call, y, opset=20):
    return Fp32(call, y, opset, "1,4,4,4")


W4 = array(4, 4, seed=1, low=0.1, scale=0.25)
WEIGHTS = {
    "v": array(4, seed=3, low=0.5),
    "shift": array(4, seed=4),
    "m": array(4, 4, seed=5, low=0.5),
    "two": np.float32(2.0),
    "scales": np.array([1.0, 1.0, 2.0, 2.0], np.float32),
    "axis": np.int64(1),
    "target": np.arange(4),
    "rois": np.array([[0.0, 0.0, 3.0, 3.0]], np.float32),
    "batch_rois": np.array([[0.0, 0.0, 0.0, 3.0, 3.0]], np.float32),
    "batch": np.zeros(1, np.int64),
    "kernel": array(2, 4, 1, 1, seed=6),
    "offset": array(1, 2, 4, 4, seed=7, scale=0.3),
    "integers": np.arange(16, dtype=np.int8).reshape(4, 4),
}
UNARY = "Acos Asin Cosh Sinh Tan Exp Log Reciprocal Softplus Softmax LogSoftmax LpNormalization"
REDUCTIONS = "ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp"
FP32 = {
    **{name: Fp32(f"{name} ({{l}})") for name in UNARY.split()},
    **{name: Fp32(f"{name} ({{l}})", "float[1,1]") for name in REDUCTIONS.split()},
    "Pow": Fp32("Pow ({l}, m)"),
    "Pow, a number": Fp32("Pow ({l}, two)"),
    "CumSum": Fp32("CumSum ({l}, axis)"),
    "CumProd": Fp32("CumProd ({l}, axis)", opset=26),
    "LayerNormalization": Fp32("LayerNormalization ({l}, v, shift)"),
    "RMSNormalization": Fp32("RMSNormalization ({l}, v)", opset=23),
    "GroupNormalization": image("GroupNormalization <num_groups = 2> ({l}, v, shift)", "float[1,4,4,4]", 21),
    "LRN": image("LRN <size = 3> ({l})", "float[1,4,4,4]"),
    "LpPool": image("LpPool <kernel_shape = [2, 2]> ({l})", "float[1,4,3,3]"),
    "GlobalLpPool": image("GlobalLpPool ({l})", "float[1,4,1,1]"),
    "Resize": image('Resize <mode = "linear"> ({l}, , scales)', "float[1,4,8,8]"),
    "Upsample": image("Upsample ({l}, scales)", "float[1,4,8,8]", 9),
    "NegativeLogLikelihoodLoss": Fp32("NegativeLogLikelihoodLoss ({l}, target)", "float"),
    "SoftmaxCrossEntropyLoss": Fp32("SoftmaxCrossEntropyLoss ({l}, target)", "float"),
    "DeformConv": image("DeformConv ({l}, kernel, offset)", "float[1,2,4,4]"),
    "RoiAlign": image("RoiAlign ({l}, rois, batch)", "float[1,4,1,1]"),
    "MaxRoiPool": image("MaxRoiPool <pooled_shape = [2, 2]> ({l}, batch_rois)", "float[1,4,2,2]"),
    "DequantizeLinear": Fp32("DequantizeLinear <axis = 1, block_size = 1> (integers, {l})", opset=21),
    "com.microsoft::Inverse": Fp32("com.microsoft.Inverse ({l})"),
    "com.microsoft::CDist": Fp32("com.microsoft.CDist ({l}, m)"),
}
# What the table above leaves out, and why.
WITHOUT_CONTROL = {
    "SimplifiedLayerNormalization": "ONNX Runtime's own, without a schema of ONNX: RMSNormalization is its equal",
    "NonMaxSuppression": "its result is no float",
    "DynamicQuantizeLinear": "its result is of eight bits",
}


def is_float(value):
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


# In bfloat16 a program with RoiAlign becomes opset 22, the first that has it, where the CPU provider has no RoiAlign;
# no opset has both Upsample and a MatMul in bfloat16.
LEFT_OUT = {("RoiAlign", "bfloat16"), ("Upsample", "bfloat16")}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in FP32 for dtype in DTYPES if (name, dtype) not in LEFT_OUT]
)
def test_a_float32_operator_behind_a_low_product_is_its_control_bit_by_bit(name, dtype):
    case, key = FP32[name], name.partition(",")[0]
    assert TORCH_CLASSES[key][0] is TorchClass.FP32
    model, feeds, low = case.graph(), case.feeds(), LOW_NAMES[dtype]
    program = converted(model, dtype)
    (product,) = nodes(program, "MatMul")
    assert product.outputs[0].dtype.name == low
    output = program.model.graph.outputs[0]
    assert output.producer().op_type == key.rpartition("::")[2]
    floats = [value for value in (*output.producer().inputs, output) if is_float(value)]
    assert {value.dtype for value in floats} == {ir.DataType.FLOAT}
    assert [cast[1:] for cast in casts(program)] == [("FLOAT", low), (low, "FLOAT")]
    result = run_emulated(program, feeds)["y"]
    assert result.dtype == np.float32
    assert_same_bits(run_emulated(case.graph(dtype), feeds)["y"], result)
    assert not np.array_equal(run(model, feeds)["y"], result), "these numbers would not show a rounding"


def test_every_float32_operator_of_onnx_has_a_control():
    controlled = {key for key in FP32 if "::" not in key and "," not in key}
    assert of_class(TorchClass.FP32) == controlled | WITHOUT_CONTROL.keys()
    assert not controlled & WITHOUT_CONTROL.keys()
