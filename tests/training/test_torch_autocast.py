"""The types that `torch.autocast("cuda")` gives, operator by operator, against what `TorchRules` decides.

torch's dispatcher casts before any kernel is called: with fake tensors that say they are on a GPU, none is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, LowFormat
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.torch.classes import TORCH_CLASSES, TorchClass
from amp_transpiler.systems.torch.rules import TorchRules
from amp_transpiler.targets.schemas_only import SCHEMAS_ONLY
from tests.support import array, parse

torch = pytest.importorskip("torch")
fake = pytest.importorskip("torch._subclasses.fake_tensor")
TF = torch.nn.functional

pytestmark = pytest.mark.slow

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(params=[FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
def low(request: pytest.FixtureRequest) -> Iterator[LowFormat]:
    """The low format, with torch's autocast for CUDA switched on in it: its context manager wants a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", DTYPES[request.param.name])
    try:
        with fake.FakeTensorMode():
            yield request.param
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        torch.clear_autocast_cache()


def on_gpu(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, device="cuda", dtype=dtype)


def index(*shape: int) -> Any:
    return torch.zeros(shape, device="cuda", dtype=torch.int64)


# ONNX's call and torch's, of matrices x and z and image p. What depends on one of them only has {x}, {p}.
Case = tuple[str, Callable[[Any, Any, Any], Any]]
OPERATORS: dict[str, Case] = {
    "MatMul": ("MatMul ({x}, {z})", lambda x, z, p: x @ z),
    "Gemm": ("Gemm ({x}, {z}, v)", lambda x, z, p: torch.addmm(on_gpu(4), x, z)),
    "Einsum": ('Einsum <equation = "ij,jk->ik"> ({x}, {z})', lambda x, z, p: torch.einsum("ij,jk->ik", x, z)),
    "Conv": ("Conv ({p}, k)", lambda x, z, p: TF.conv2d(p, on_gpu(4, 4, 1, 1))),
    "ConvTranspose": ("ConvTranspose ({p}, k)", lambda x, z, p: TF.conv_transpose2d(p, on_gpu(4, 4, 1, 1))),
    "PRelu": ("PRelu ({x}, v)", lambda x, z, p: TF.prelu(x, on_gpu(4))),
    "Exp": ("Exp ({x})", lambda x, z, p: x.exp()),
    "Log": ("Log ({x})", lambda x, z, p: x.log()),
    "Acos": ("Acos ({x})", lambda x, z, p: x.acos()),
    "Sinh": ("Sinh ({x})", lambda x, z, p: x.sinh()),
    "Tan": ("Tan ({x})", lambda x, z, p: x.tan()),
    "Reciprocal": ("Reciprocal ({x})", lambda x, z, p: x.reciprocal()),
    "Pow": ("Pow ({x}, {z})", lambda x, z, p: x**z),
    "Pow, a number": ("Pow ({x}, s)", lambda x, z, p: x**2.0),
    "Softplus": ("Softplus ({x})", lambda x, z, p: TF.softplus(x)),
    "Softmax": ("Softmax ({x})", lambda x, z, p: x.softmax(-1)),
    "LogSoftmax": ("LogSoftmax ({x})", lambda x, z, p: x.log_softmax(-1)),
    "CumSum": ("CumSum ({x}, axis)", lambda x, z, p: x.cumsum(1)),
    "ReduceSum": ("ReduceSum ({x})", lambda x, z, p: x.sum()),
    "ReduceProd": ("ReduceProd ({x})", lambda x, z, p: x.prod()),
    "ReduceL1": ("ReduceL1 ({x})", lambda x, z, p: x.norm(1)),
    "ReduceL2": ("ReduceL2 ({x})", lambda x, z, p: torch.linalg.vector_norm(x)),
    "ReduceLogSumExp": ("ReduceLogSumExp ({x})", lambda x, z, p: x.logsumexp((0, 1))),
    "LpNormalization": ("LpNormalization ({x})", lambda x, z, p: TF.normalize(x)),
    "LayerNormalization": ("LayerNormalization ({x}, v)", lambda x, z, p: TF.layer_norm(x, [4], on_gpu(4))),
    "LRN": ("LRN <size = 3> ({p})", lambda x, z, p: TF.local_response_norm(p, 3)),
    "LpPool": ("LpPool <kernel_shape = [2, 2]> ({p})", lambda x, z, p: TF.lp_pool2d(p, 2, 2)),
    "Resize": ("Resize ({p}, , scales)", lambda x, z, p: TF.interpolate(p, scale_factor=2)),
    "ScatterElements": (
        'ScatterElements <reduction = "add"> ({x}, at, {z})',
        lambda x, z, p: torch.scatter_add(x, 0, index(4, 4), z),
    ),
    "ScatterND": ("ScatterND ({x}, rows, {z})", lambda x, z, p: torch.index_put(x, (index(4),), z)),
    "Add": ("Add ({x}, {z})", lambda x, z, p: x + z),
    "Sub": ("Sub ({x}, {z})", lambda x, z, p: x - z),
    "Mul": ("Mul ({x}, {z})", lambda x, z, p: x * z),
    "Div": ("Div ({x}, {z})", lambda x, z, p: x / z),
    "Max": ("Max ({x}, {z})", lambda x, z, p: torch.maximum(x, z)),
    "Concat": ("Concat <axis = 0> ({x}, {z})", lambda x, z, p: torch.cat([x, z])),
    "Where": ("Where (c, {x}, {z})", lambda x, z, p: torch.where(on_gpu(4, 4, dtype=torch.bool), x, z)),
    "Mul, a number": ("Mul ({x}, s)", lambda x, z, p: x * 2.0),
    "Mul, a 0-dim tensor": ("Mul ({x}, d)", lambda x, z, p: x * on_gpu()),
    "Sub, a parameter": ("Sub ({x}, v)", lambda x, z, p: x - on_gpu(4)),
    "Sqrt": ("Sqrt ({x})", lambda x, z, p: x.sqrt()),
    "Erf": ("Erf ({x})", lambda x, z, p: x.erf()),
    "Relu": ("Relu ({x})", lambda x, z, p: x.relu()),
    "Gelu": ("Gelu ({x})", lambda x, z, p: TF.gelu(x)),
    "Sigmoid": ("Sigmoid ({x})", lambda x, z, p: x.sigmoid()),
    "Tanh": ("Tanh ({x})", lambda x, z, p: x.tanh()),
    "ReduceMean": ("ReduceMean ({x})", lambda x, z, p: x.mean()),
    "ReduceMax": ("ReduceMax ({x})", lambda x, z, p: x.amax()),
    "Clip": ("Clip ({x}, s)", lambda x, z, p: x.clamp(2.0)),
    "AveragePool": ("AveragePool <kernel_shape = [2, 2]> ({p})", lambda x, z, p: TF.avg_pool2d(p, 2)),
    "MaxPool": ("MaxPool <kernel_shape = [2, 2]> ({p})", lambda x, z, p: TF.max_pool2d(p, 2)),
    "GlobalAveragePool": ("GlobalAveragePool ({p})", lambda x, z, p: TF.adaptive_avg_pool2d(p, 1)),
    "BatchNormalization": (
        "BatchNormalization ({p}, v, v, v, v)",
        lambda x, z, p: TF.batch_norm(p, on_gpu(4), on_gpu(4), on_gpu(4), on_gpu(4)),
    ),
    "InstanceNormalization": (
        "InstanceNormalization ({p}, v, v)",
        lambda x, z, p: TF.instance_norm(p, weight=on_gpu(4), bias=on_gpu(4)),
    ),
    "Transpose": ("Transpose ({x})", lambda x, z, p: x.t()),
    "Gather": ("Gather ({x}, rows)", lambda x, z, p: x.index_select(0, index(4))),
}

HEAD = "(float[4,4] a, float[4,4] b, float[1,4,4,4] i, int64[4,4] at) => (float y)"
VALUES = """lx = MatMul (a, w) lz = MatMul (b, w) lp = Conv (i, k) hx = Exp (a) hz = Exp (b) hp = Exp (i)
    d = ReduceSum <keepdims = 0> (a) c = Equal (at, at)"""


def ours(call: str, low: LowFormat, before: str = "") -> tuple[bool, str]:
    """Whether the last node, behind those of `before`, is low by `TorchRules`, and why."""
    weights = {"w": array(4, 4), "k": array(4, 4, 1, 1), "v": array(4, low=0.5), "s": np.float32(2.0)}
    weights |= {"axis": np.array(1), "rows": np.arange(4).reshape(4, 1), "scales": np.array([1, 1, 2, 2], np.float32)}
    model = ir.from_proto(
        parse(f"{HEAD} {{ {VALUES} {before} [n] r = {call} y = ReduceSum (r) }}", opset=22, **weights)
    )
    infer_shapes(model)
    propagate_types(model)
    # Whose kernels count is beside the point: with `openvino`, only the schemas decide what can be low.
    rules = TorchRules(low, amp.AutoMixedPrecisionLists(dtype=low.name))
    assignment = assign(model, Policy(low=low, target=SCHEMAS_ONLY["openvino"], rules=rules))
    decision = assignment.decisions[next(node for node in all_nodes(model) if node.name == "n")]
    return decision.precision == "low", str(decision.reason)


NO_SCHEMA = {("Einsum", "bfloat16")}  # ONNX's operator does not take the format: it stays float32


@pytest.mark.parametrize("name", OPERATORS)
def test_types_are_those_of_torchs_autocast(name: str, low: LowFormat) -> None:
    call, theirs = OPERATORS[name]
    for first in "lh":
        for second in "lh":
            dtypes = {"l": DTYPES[low.name], "h": torch.float32}
            x, z = on_gpu(4, 4, dtype=dtypes[first]), on_gpu(4, 4, dtype=dtypes[second])
            expected = theirs(x, z, on_gpu(1, 4, 4, 4, dtype=dtypes[first])).dtype
            is_low, reason = ours(call.format(x=f"{first}x", z=f"{second}z", p=f"{first}p"), low)
            assert expected in dtypes.values()
            if (name, low.name) in NO_SCHEMA:
                assert not is_low
                assert "does not permit" in reason
                continue
            assert is_low == (expected == dtypes["l"]), f"{first}{second}: torch gives {expected}, we: {reason}"


@pytest.mark.parametrize("first", ["a", "lx", "hx"])
def test_the_bias_of_a_product_goes_with_it_as_in_linear(first: str, low: LowFormat) -> None:
    """Exporters write `linear` as MatMul and Add; a parameter that the user's own code adds is written the same."""
    x = on_gpu(4, 4, dtype=DTYPES[low.name] if first == "lx" else torch.float32)
    assert TF.linear(x, on_gpu(4, 4), on_gpu(4)).dtype == DTYPES[low.name]
    is_low, reason = ours("Add (m, v)", low, f"m = MatMul ({first}, w)")
    assert is_low, reason


@pytest.mark.parametrize("compare", [torch.eq, torch.lt, torch.le, torch.gt, torch.ge])
def test_comparisons_give_bool(compare: Callable[..., Any], low: LowFormat) -> None:
    assert compare(on_gpu(4), on_gpu(4, dtype=DTYPES[low.name])).dtype == torch.bool


def test_torch_refuses_the_same_loss(low: LowFormat) -> None:
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        TF.binary_cross_entropy(on_gpu(4), on_gpu(4))


def test_each_class_is_compared() -> None:
    counts = dict.fromkeys(TorchClass, 0)
    for name in OPERATORS:
        counts[TORCH_CLASSES[name.partition(",")[0]][0]] += 1
    assert min(counts.values()) >= 2
