"""The kernel look-up, against what ONNX Runtime 1.31.1's own providers did with the same single nodes.

The expectations were seen: a session on the CUDA provider (with stand-ins for the driver, so that placement is real and
nothing runs) put the node on CUDA, or on the CPU, or refused the model. Three kinds of refusal are about running
instead: reductions of ScatterND and ScatterElements (on the CPU, seen; on CUDA, the kernels that are compiled) and a
low region of interest of Resize.
"""

import subprocess
import sys

import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.node_kind import UNTYPED
from amp_transpiler.targets import ANY, CPU, CUDA, TARGETS, TENSORRT, Target, find_target
from amp_transpiler.targets.function_bodies import body_of, is_ill_typed
from amp_transpiler.targets.kernel_table import kernel_type
from amp_transpiler.targets.operator import Operator, imports_of, operator_of
from amp_transpiler.targets.releases import load_release

ELEMENTS = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}
UNARY = "y = {op}(x)"
BINARY = "y = {op}(x, x)"
REDUCE = UNARY
POOL = "y = {op}<kernel_shape=[2,2]>(x)"
NORM = "y = {op}(x, s, s)"
BATCH_NORM = "y = BatchNormalization(x, s, s, s, s)"
LOSS = "y = {op}(x, labels)"
COMPARE = "b = {op}(x, x)"
GROUP_NORM = "y = GroupNormalization<num_groups=2>(x, s, s)"


def single_node(body, dtype, opset, stats=None):
    """The last node of a graph whose values x, s and y are of `dtype` (s of `stats` where that is given)."""
    t, u = ELEMENTS[dtype], ELEMENTS[stats or dtype]
    text = f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
    g ({t} x, {u} s, int64 labels, int64 k, int64 i, float scales, bool c)
    => ({t} y, bool b, int64 indices) {{ {body} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    return model, model.graph[-1]


def on(provider, node, opset):
    return TARGETS[provider].has_kernel(operator_of(node, imports_of({"": opset, "com.microsoft": 1})))


@pytest.mark.parametrize(
    ("op", "body", "opset", "low", "expected"),  # expected: whether CUDA takes it in f32, and in the low format
    [
        # An open-ended registration ends where a newer schema begins.
        ("MaxPool", POOL, 21, "f16", (True, True)),
        ("MaxPool", POOL, 22, "f16", (False, False)),
        ("Dropout", UNARY, 21, "f16", (True, True)),
        ("Dropout", UNARY, 22, "f16", (False, False)),
        ("Elu", UNARY, 21, "f16", (True, True)),
        ("Elu", UNARY, 22, "f16", (False, False)),
        ("Selu", UNARY, 22, "f16", (False, False)),
        ("ThresholdedRelu", UNARY, 22, "f16", (False, False)),
        ("InstanceNormalization", NORM, 21, "f16", (True, True)),
        ("InstanceNormalization", NORM, 22, "f16", (False, False)),
        ("AveragePool", POOL, 21, "f16", (True, True)),
        ("AveragePool", POOL, 22, "bf16", (True, True)),
        # What has kernels in every format, and what has none.
        ("Add", BINARY, 13, "bf16", (True, True)),
        ("Add", BINARY, 21, "bf16", (True, True)),
        ("MatMul", BINARY, 21, "bf16", (True, True)),
        ("Conv", BINARY, 22, "bf16", (True, True)),
        ("Softmax", UNARY, 21, "bf16", (True, True)),
        ("LayerNormalization", NORM, 21, "bf16", (True, True)),
        ("ReduceSum", REDUCE, 21, "bf16", (True, True)),
        ("Gelu", UNARY, 21, "bf16", (True, True)),
        ("com.microsoft.FastGelu", UNARY, 21, "bf16", (True, True)),
        ("com.microsoft.Inverse", UNARY, 21, "f16", (True, True)),
        ("Atan", UNARY, 21, "f16", (False, False)),
        ("Tan", UNARY, 21, "f16", (False, False)),
        ("Hardmax", UNARY, 21, "f16", (False, False)),
        ("Mean", BINARY, 21, "f16", (False, False)),
        ("Det", UNARY, 21, "f32", (False, False)),
        # float16, but no bfloat16.
        ("LogSoftmax", UNARY, 21, "f16", (True, True)),
        ("LogSoftmax", UNARY, 21, "bf16", (True, False)),
        ("Log", UNARY, 21, "bf16", (True, False)),
        ("LeakyRelu", UNARY, 21, "bf16", (True, False)),
        ("GlobalAveragePool", UNARY, 22, "f16", (True, True)),
        ("GlobalAveragePool", UNARY, 22, "bf16", (True, False)),
        ("ReduceMax", REDUCE, 21, "f16", (True, True)),
        ("ReduceMax", REDUCE, 21, "bf16", (True, False)),
        ("Greater", COMPARE, 21, "f16", (True, True)),
        ("Greater", COMPARE, 21, "bf16", (True, False)),
        ("ConvTranspose", BINARY, 22, "bf16", (True, False)),
        ("PRelu", BINARY, 21, "bf16", (True, False)),
        ("Clip", UNARY, 21, "bf16", (True, False)),
        # bfloat16 as of a version, or in one combination of types only.
        ("TopK", "y, indices = TopK(x, k)", 21, "f16", (True, True)),
        ("TopK", "y, indices = TopK(x, k)", 24, "bf16", (True, True)),
        ("Where", "y = Where(c, x, x)", 21, "bf16", (True, True)),
        ("Reshape", "y = Reshape(x, k)", 21, "bf16", (True, True)),  # constrained on the input `shape` too
        ("GridSample", BINARY, 20, "f32", (True, True)),
        ("EyeLike", UNARY, 21, "f16", (True, False)),
        ("EyeLike", UNARY, 22, "f16", (False, False)),
        ("BatchNormalization", BATCH_NORM, 21, "f16", (True, True)),
        ("BatchNormalization", BATCH_NORM, 21, "bf16", (True, False)),
        ("Attention", "y = Attention(x, x, x)", 24, "bf16", (True, True)),
        ("Attention", "y = Attention(x, x, x)", 25, "f16", (True, True)),  # newer only for the onnx package
    ],
)
def test_cuda_kernels(op, body, opset, low, expected):
    taken = tuple(on("cuda", single_node(body.format(op=op), dtype, opset)[1], opset) for dtype in ("f32", low))
    assert taken == expected


def test_float16_batch_normalization_with_float32_statistics_is_left_to_the_cpu():
    assert on("cuda", single_node(BATCH_NORM, "f16", 21)[1], 21)
    assert not on("cuda", single_node(BATCH_NORM, "f16", 21, stats="f32")[1], 21)


@pytest.mark.parametrize(
    ("body", "expected", "says"),
    [
        ("y = GRU<hidden_size=4, linear_before_reset=1>(x, x, x)", True, ""),
        ("y = GRU<hidden_size=4>(x, x, x)", False, "linear_before_reset=1"),
        ("y = GRU<hidden_size=4, linear_before_reset=1, clip=1.0>(x, x, x)", False, "clip"),
        ('y = GRU<hidden_size=4, linear_before_reset=1, activations=["Sigmoid","Tanh"]>(x, x, x)', True, ""),
        ('y = GRU<hidden_size=4, linear_before_reset=1, activations=["Tanh","Tanh"]>(x, x, x)', False, "activations"),
        ("y = LSTM<hidden_size=4>(x, x, x)", True, ""),
        ("y = LSTM<hidden_size=4, input_forget=1>(x, x, x)", False, "input_forget=0"),
        ('y = LSTM<hidden_size=4, activations=["Sigmoid","Relu","Tanh"]>(x, x, x)', False, "activations"),
        ("y = LSTM<hidden_size=4>(x, x, x, , , , , x)", False, "peepholes"),
        ("y = RNN<hidden_size=4>(x, x, x)", True, ""),
        ('y = RNN<hidden_size=4, activations=["Relu"]>(x, x, x)', False, "tanh"),
        ("y = ConvTranspose(x, x)", True, ""),
        ("y = ConvTranspose<pads=[1,1,1,1]>(x, x)", True, ""),
        ("y = ConvTranspose<pads=[0,0,1,1]>(x, x)", False, "asymmetric"),
        ('y = ConvTranspose<auto_pad="SAME_UPPER">(x, x)', False, "SAME"),
        ('y = ConvTranspose<auto_pad="VALID">(x, x)', True, ""),
        ("indices = ArgMax(x)", True, ""),
        ("indices = ArgMax<select_last_index=1>(x)", False, "select_last_index"),
        ("y = BatchNormalization<training_mode=1>(x, s, s, s, s)", False, "training"),
        ("y = Resize(x, , scales)", True, ""),
        ("y = Resize(x, x, scales)", False, "region of interest"),
        ('y = ScatterND<reduction="none">(x, i, x)', True, ""),
        ('y = ScatterND<reduction="add">(x, i, x)', True, ""),
        ('y = ScatterND<reduction="max">(x, i, x)', False, "ScatterND"),
        ('y = ScatterElements<reduction="add">(x, i, x)', True, ""),
    ],
)
def test_a_registered_float16_kernel_may_be_refused_on_cuda(body, expected, says):
    _, node = single_node(body, "f16", 21)
    assert on("cuda", node, 21) is expected
    assert says in (CUDA.refusal(operator_of(node, (("", 21),))) or "")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_bidirectional_layer_lists_its_activations_twice(op):
    names = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[op] * 2

    def refusal(*activations):
        attributes = (("activations", activations), ("linear_before_reset", 1))
        return CUDA.refusal(Operator("", op, (("", 21),), ("tensor(float16)",) * 3, ("tensor(float16)",), attributes))

    assert refusal(*names) is None
    assert refusal(*names[:-1], "Relu") is not None


@pytest.mark.parametrize(
    ("op", "reduction", "expected"),
    [
        ("ScatterND", "none", True),
        ("ScatterND", "add", False),
        ("ScatterND", "max", False),
        ("ScatterElements", "none", True),
        ("ScatterElements", "add", False),
        ("ScatterElements", "mul", False),
        ("ScatterElements", "max", True),
    ],
)
def test_the_cpus_float16_scatters(op, reduction, expected):
    _, node = single_node(f'y = {op}<reduction="{reduction}">(x, i, x)', "f16", 21)
    assert on("cpu", node, 21) is expected
    assert CPU.runs(operator_of(node, (("", 21),))) is expected  # no cast is inserted: a kernel is registered
    _, node = single_node(f'y = {op}<reduction="{reduction}">(x, i, x)', "f32", 21)
    assert on("cpu", node, 21)


@pytest.mark.parametrize(
    ("op", "body", "opset", "dtype", "expected"),
    [
        ("Mish", UNARY, 18, "f16", True),
        ("Mish", UNARY, 22, "bf16", True),
        ("Swish", UNARY, 24, "f16", True),
        ("Swish", UNARY, 24, "bf16", True),
        ("Swish", UNARY, 26, "f16", False),  # its Constant has a newer version: ONNX Runtime drops the body
        ("CastLike", BINARY, 21, "bf16", True),
        ("Clip", UNARY, 21, "bf16", True),
        ("GroupNormalization", GROUP_NORM, 21, "f16", True),  # its shape arithmetic goes to the CPU, by design
        ("GroupNormalization", GROUP_NORM, 23, "bf16", True),
        ("SoftmaxCrossEntropyLoss", LOSS, 21, "f32", True),
        ("SoftmaxCrossEntropyLoss", LOSS, 21, "f16", True),
        ("SoftmaxCrossEntropyLoss", LOSS, 22, "bf16", False),  # LogSoftmax
        ("NegativeLogLikelihoodLoss", LOSS, 21, "f16", True),
        ("NegativeLogLikelihoodLoss", LOSS, 24, "bf16", True),
        ("MeanVarianceNormalization", UNARY, 21, "f32", False),  # the CPU has a kernel and takes it whole
        ("MeanVarianceNormalization", UNARY, 18, "f16", False),  # its body adds a float32 constant: refused
        ("MeanVarianceNormalization", UNARY, 21, "bf16", False),
        ("Celu", UNARY, 21, "f32", False),  # likewise
        ("ReduceL2", REDUCE, 18, "bf16", True),
        ("ReduceL2", REDUCE, 21, "bf16", False),  # its Cast has a newer version
        ("ReduceSumSquare", REDUCE, 21, "bf16", True),
        ("ReduceLogSumExp", REDUCE, 18, "bf16", True),
        ("ReduceLogSumExp", REDUCE, 21, "bf16", False),
        ("LogSoftmax", UNARY, 21, "bf16", False),
        ("PRelu", BINARY, 21, "bf16", False),
        ("Elu", UNARY, 24, "f16", False),
        ("Bernoulli", UNARY, 21, "f16", True),
        ("Relu", UNARY, 13, "f16", None),  # no function at that version
        ("Add", BINARY, 21, "f16", None),
        ("com.microsoft.FastGelu", UNARY, 21, "f16", None),
    ],
)
def test_functions_are_judged_by_their_body(op, body, opset, dtype, expected, caplog):
    model, node = single_node(body.format(op=op), dtype, opset)
    operator = operator_of(node, imports_of(model.opset_imports))
    caplog.clear()
    assert NoKernelItself(CUDA, operator).runs(operator) is bool(expected)
    if expected is None:
        assert body_of(operator, CUDA.release) is None
    assert not caplog.records  # onnx_ir would warn of a node that is read without its graph


class NoKernelItself(Target):
    """A target without a kernel for one operator, so that its body decides."""

    def __init__(self, target, operator):
        self.target, self.operator, self.fallback = target, operator, target.fallback

    def has_kernel(self, operator):
        return operator != self.operator and self.target.has_kernel(operator)


def test_without_a_fallback_a_body_is_always_used():
    _, node = single_node("y = Celu(x)", "f32", 21)
    operator = operator_of(node, (("", 21),))
    target = NoKernelItself(CUDA, operator)
    target.fallback = None
    assert target.runs(operator) is True


class Asked(Target):
    """A target that notes what it is asked and has kernels for all operators but some."""

    def __init__(self, *missing):
        self.missing, self.questions = missing, []

    def has_kernel(self, operator):
        version = self.release.schema_version(operator.domain, operator.op_type, operator.opset)
        asked = (operator.domain, operator.op_type, version, operator.bound_types.get("T"))
        self.questions.append(asked)
        return operator.op_type not in self.missing


def mish(*types):
    return Operator("", "Mish", (("", 22),), types, types)


def test_every_float_node_of_a_body_is_looked_up():
    target = Asked("Mish")
    assert target.runs(mish("tensor(float16)")) is True
    asked = target.questions[1:]  # after Mish itself
    assert asked == [("", "Softplus", 22, "float16"), ("", "Tanh", 13, "float16"), ("", "Mul", 14, "float16")]
    assert Asked("Mish", "Tanh").runs(mish("tensor(float16)")) is False


@pytest.mark.parametrize("unknown", [None, UNTYPED])
def test_a_body_with_unknown_types_has_no_kernels(unknown):
    assert body_of(mish(unknown), CUDA.release) is None


def test_a_node_with_bodies_of_its_own_is_not_judged():
    text = """<ir_version: 10, opset_import: ["": 21]> g (seq(float) s) => (seq(float) t) {
        t = SequenceMap(s) <body = b (float x) => (float y) { y = Relu(x) }> }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert body_of(operator_of(model.graph[0], (("", 21),)), CUDA.release) is None


@pytest.mark.parametrize(
    ("op", "body", "opset", "dtype", "expected"),
    [
        ("MeanVarianceNormalization", UNARY, 9, "f16", True),
        ("MeanVarianceNormalization", UNARY, 18, "f16", True),
        ("MeanVarianceNormalization", UNARY, 18, "bf16", True),
        ("MeanVarianceNormalization", UNARY, 18, "f32", False),
        ("GroupNormalization", GROUP_NORM, 21, "f16", False),
        ("GreaterOrEqual", COMPARE, 12, "f16", False),
        ("Clip", UNARY, 13, "bf16", False),  # ill-typed there too, but its schema infers types without the body
        ("Relu", UNARY, 13, "f16", False),  # no function
    ],
)
def test_bodies_that_onnx_refuses(op, body, opset, dtype, expected):
    _, node = single_node(body.format(op=op), dtype, opset)
    operator = operator_of(node, (("", opset),))
    assert is_ill_typed(operator) is expected
    if expected:
        assert not any(target.runs(operator) for target in TARGETS.values())


@pytest.mark.parametrize(
    ("domain", "op", "opset", "expected"),
    [
        ("", "MaxPool", 21, 12),
        ("ai.onnx", "MaxPool", 22, 22),
        ("", "Attention", 25, 24),  # the onnx package has a 25 already
        ("", "Mish", 17, None),
        ("", "Upsample", 9, 9),
        ("", "Upsample", 10, None),  # deprecated
        ("", "NoSuchOperator", 21, None),
        ("com.microsoft", "BiasGelu", 1, 1),
        ("my.domain", "Relu", 1, None),
    ],
)
def test_schema_versions(domain, op, opset, expected):
    assert load_release("1.31").schema_version(domain, op, opset) == expected


@pytest.mark.parametrize(
    ("version", "types", "expected"),
    [
        (12, {"T": "float16"}, True),
        (12, {"T": "tensor(float16)"}, True),
        (12, {"T": "float16", "I": "int64"}, True),
        (12, {"T": "float16", "I": "int32"}, False),
        (12, {"T": "bfloat16"}, False),
        (12, {}, True),  # nothing is asked
        (13, {"T": "float16"}, False),  # open-ended at 12: not for a version that it does not know
        (9, {"T": "float16"}, True),  # closed, 8 to 9
        (None, {"T": "float16"}, False),
    ],
)
def test_matching_rule(version, types, expected):
    for domain in ("", "ai.onnx"):
        assert CUDA.table.has_kernel(domain, "MaxPool", version, types) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor(float)", "float32"),
        ("tensor(double)", "float64"),
        ("tensor(bfloat16)", "bfloat16"),
        ("seq(tensor(float))", "seq(tensor(float32))"),
        ("float16", "float16"),
        ("optional(seq(tensor(double)))", "optional(seq(tensor(float64)))"),
    ],
)
def test_kernel_types(text, expected):
    assert kernel_type(text) == expected


def test_sequences_are_looked_up_too():
    types = {"S": "seq(tensor(float16))", "I": "int64", "T": "float16"}
    assert CUDA.table.has_kernel("", "SequenceAt", 11, types)
    assert not CUDA.table.has_kernel("", "SequenceAt", 11, {**types, "S": "seq(tensor(string))"})


def test_mentions():
    assert CUDA.table.mentions("", "Conv", "float16")
    assert not CUDA.table.mentions("", "GridSample", "float16")
    assert not CUDA.table.mentions("", "NoSuchOperator", "float32")


def test_attributes_and_missing_inputs():
    _, node = single_node('y = LSTM<hidden_size=4, clip=0.5, activations=["Tanh"]>(x, x, x, , , , , x)', "f32", 21)
    operator = operator_of(node, (("", 21),))
    assert dict(operator.attributes) == {"hidden_size": 4, "clip": 0.5, "activations": ("Tanh",)}
    assert operator.attribute("clip") == 0.5
    assert operator.attribute("input_forget", 0) == 0
    assert [index for index, type_ in enumerate(operator.inputs) if type_ is not None] == [0, 1, 2, 7]


RUNTIME = (".".join(onnxruntime.__version__.split(".")[:2]), CPU.newest_opset, CPU.newest_ir)
TARGET_ROWS = {  # name: (provider, fallback, providers, Tan in float16: kernel, runs; Tan of com.microsoft)
    "cuda": (CUDA, "CUDAExecutionProvider", CPU, (CUDA, CPU), False, False),
    "cpu": (CPU, "CPUExecutionProvider", None, (CPU,), False, True),
    "any": (ANY, None, None, (CUDA, CPU), False, False),
    "tensorrt": (TENSORRT, None, None, (TENSORRT,), True, True),
}


@pytest.mark.parametrize("name", TARGET_ROWS)
def test_targets(name):
    target, provider, fallback, providers, has_kernel, runs = TARGET_ROWS[name]
    assert find_target(name) is target is TARGETS[target.name]
    assert (target.provider, target.fallback, target.providers) == (provider, fallback, providers)
    tan = Operator("", "Tan", (("", 21),), ("tensor(float16)",), ("tensor(float16)",))
    assert (target.has_kernel(tan), target.runs(tan)) == (has_kernel, runs)
    assert (target.ort, target.newest_opset, target.newest_ir) == RUNTIME


def test_an_unknown_target_is_refused():
    with pytest.raises(OptionError, match=r"'rocm'.*cuda, cpu"):
        find_target("rocm")


def test_listing_the_targets_imports_neither_onnx_nor_numpy():
    code = "import amp_transpiler.targets, sys; print([m for m in ('onnx', 'onnx_ir', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
