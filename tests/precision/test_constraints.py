"""The constraints on a node: its schema, the target's kernels, the range of its constants."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.constraints import Constraints, is_float32, touches_float32
from amp_transpiler.precision.ranges import RangeFaults, range_fault
from amp_transpiler.targets import CUDA, TARGETS, Target
from tests.support import Knows, array, parse

FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16}
IMPORTS = ', "com.microsoft": 1, "ai.onnx.ml": 3, "my.domain": 1'


def judged(text, opset, dtype, target, position=-1):
    model = ir.from_proto(parse(text, opset=opset, imports=IMPORTS))
    propagate_types(model)
    return Constraints(model, TARGETS[target], FORMATS[dtype]).of(list(model.graph)[position])


CONV = "(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) { y = Conv (x, w) }"
MATMUL = "(float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }"
MAXPOOL = "(float[1,2,4,4] x) => (float[1,2,4,4] y) { y = MaxPool <kernel_shape = [1,1]> (x) }"
RESIZE = "(float[1,2,4,4] x, float[8] r, float[4] s) => (float[1,2,8,8] y) { y = Resize (x, r, s) }"
NORM = """(float[2,4] x, float[4] s, float[4] b) => (float[2,4] y, float[2,1] m, float[2,1] i) {
    y, m, i = LayerNormalization (x, s, b)
}"""
BATCH = """(float[2,4,3] x, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2,4,3] y) {
    y = BatchNormalization (x, s, b, m, v)
}"""
QUANTIZE = "(float[2] x, float s, int8 z) => (int8[2] y) { y = QuantizeLinear (x, s, z) }"
CUMSUM = "(float[2] x, int64 a) => (float[2] y) { y = CumSum (x, a) }"
WHERE = "(bool[2] c, float[2] x, float[2] z) => (float[2] y) { y = Where (c, x, z) }"
EYE = "(float[2,2] x) => (float[2,2] y) { y = EyeLike <dtype = 1> (x) }"
FUSED = "(float[2,4] x, float[4,4] w) => (float[2,4] y) { y = com.microsoft.FusedMatMul (x, w) }"
SCALER = "(float[2,4] x) => (float[2,4] y) { y = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x) }"

# (graph, opset, format, target): (low inputs, low outputs), or part of the reason why not
FORMS = {
    "Conv in float16": (CONV, 18, "float16", "cuda", ({0, 1}, {0})),
    "Conv in bfloat16 below opset 22: no such type": (CONV, 18, "bfloat16", "cuda", "does not permit bfloat16"),
    "Conv in bfloat16 at opset 22": (CONV, 22, "bfloat16", "cuda", ({0, 1}, {0})),
    "MatMul in bfloat16 at opset 13": (MATMUL, 13, "bfloat16", "cuda", ({0, 1}, {0})),
    "MatMul in bfloat16 at opset 12: no such type": (MATMUL, 12, "bfloat16", "cuda", "does not permit bfloat16"),
    "MaxPool loses its kernel at opset 22": (MAXPOOL, 22, "bfloat16", "cuda", "no bfloat16 kernel for MaxPool-22"),
    "MaxPool in float16": (MAXPOOL, 12, "float16", "cuda", ({0}, {0})),
    "MatMul on the CPU, which casts by itself": (MATMUL, 18, "float16", "cpu", ({0, 1}, {0})),
    "MatMul in bfloat16 on the CPU": (MATMUL, 18, "bfloat16", "cpu", "no bfloat16 kernel for MatMul-13 on cpu"),
    "MatMul in bfloat16 anywhere": (MATMUL, 18, "bfloat16", "any", "no bfloat16 kernel"),
    "MatMul in float16 anywhere": (MATMUL, 18, "float16", "any", ({0, 1}, {0})),
    "MaxPool at opset 22 for TensorRT: schema alone": (MAXPOOL, 22, "bfloat16", "tensorrt", ({0}, {0})),
    "contrib operator for TensorRT": (FUSED, 18, "float16", "tensorrt", "no float16 kernel"),
    "contrib operator on CUDA": (FUSED, 18, "float16", "cuda", ({0, 1}, {0})),
    "Resize's scales stay, and its roi for want of a kernel": (RESIZE, 18, "float16", "cuda", ({0}, {0})),
    "Resize for TensorRT: by the schema roi may be low": (RESIZE, 18, "float16", "tensorrt", ({0, 1}, {0})),
    "LayerNormalization's statistics stay": (NORM, 18, "float16", "cuda", ({0, 1, 2}, {0})),
    "QuantizeLinear below opset 19": (QUANTIZE, 18, "float16", "cuda", "does not permit float16"),
    "QuantizeLinear at opset 19": (QUANTIZE, 19, "float16", "cuda", ({0, 1}, set())),
    "CumSum below opset 14": (CUMSUM, 13, "float16", "cuda", "does not permit float16"),
    "an input that is left out": (
        '(float[2] x, float h) => (float[2] y) { y = Clip (x, "", h) }',
        18,
        "float16",
        "cuda",
        ({0, 2}, {0}),
    ),
    "a type that an attribute fixes": (NORM, 18, "bfloat16", "tensorrt", ({0, 1, 2}, {0})),
    "inputs of any types": (
        "(float s, uint8 z, uint8[2] x) => (uint8[4] y) { y = com.microsoft.QLinearConcat <axis = 0> (s, z, x, s, z) }",
        18,
        "float16",
        "cuda",
        "its inputs may be of any types",
    ),
    "an attribute that may change with the type": (EYE, 18, "float16", "tensorrt", ({0}, {0})),
    "Where keeps its condition": (WHERE, 18, "float16", "cuda", ({1, 2}, {0})),
    "ai.onnx.ml has no low types": (SCALER, 18, "float16", "cuda", "does not permit float16"),
    "unknown domain": (
        "(float[2] x) => (float[2] y) { y = my.domain.Any (x) }",
        18,
        "float16",
        "cuda",
        "no schema is known",
    ),
    "operator newer than the opset": (
        "(float[2] x) => (float[2] y) { y = Gelu (x) }",
        19,
        "float16",
        "cuda",
        "no schema is known",
    ),
    "a function judged by its body": (
        "(float[2] x) => (float[2] y) { y = HardSwish (x) }",
        18,
        "float16",
        "cuda",
        ({0}, {0}),
    ),
    "NonMaxSuppression": (
        "(float[1,3,4] b, float[1,1,3] s) => (int64[N,3] y) { y = NonMaxSuppression (b, s) }",
        18,
        "float16",
        "cuda",
        "",
    ),
    "BitCast": ("(float[2] x) => (int32[2] y) { y = BitCast <to = 6> (x) }", 26, "float16", "cuda", "reinterprets"),
    "DynamicQuantizeLinear": (
        "(float[2] x) => (uint8[2] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }",
        18,
        "float16",
        "cuda",
        "by definition",
    ),
    "a sequence": ("(float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }", 18, "float16", "cuda", "seq"),
    "an optional": ("(float[2] x) => (optional(float[2]) y) { y = Optional (x) }", 18, "float16", "cuda", "optional"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_low_form_of_a_node(name):
    text, opset, dtype, target, expected = FORMS[name]
    low_form = judged(text, opset, dtype, target)
    if isinstance(expected, str):
        assert low_form.form is None
        assert expected in str(low_form.reason)
        assert low_form.missing_kernel == ("kernel" in expected)
        assert low_form.no_schema == ("no schema" in expected)
        assert not low_form.reads_any
    else:
        assert (set(low_form.form.inputs), set(low_form.form.outputs)) == expected
        assert low_form.reason is None


def test_batch_normalization_follows_the_kernel_not_the_schema():
    """From opset 15 on, the schema lets the statistics stay float32; CUDA's kernel does not."""
    low_form = judged(BATCH, 15, "float16", "cuda")
    assert (set(low_form.form.inputs), set(low_form.form.outputs)) == ({0, 1, 2, 3, 4}, {0})


READS_ANY = {"Shape (x)": "", "Size (x)": "", "Cast <to = 7> (x)": "the user's own cast keeps its type"}


@pytest.mark.parametrize("call", READS_ANY)
def test_operators_that_take_any_float(call):
    low_form = judged(f"(float[2] x) => (int64[N] y) {{ y = {call} }}", 18, "float16", "cuda")
    assert low_form.reads_any
    assert low_form.form is None
    assert str(low_form.reason or "") == READS_ANY[call]


DROPOUT = "(float[2] x, float r) => (float[2] y) { y = Dropout (x, r) }"
OWN_BATCH = BATCH.replace("BatchNormalization", "my.domain.BatchNormalization")
LOWERED = {
    # name: (graph, opset, low inputs asked for, (low inputs, low outputs) or part of the reason why not)
    "BatchNormalization": (BATCH, 15, None, ({0}, {0})),
    "its data low, as asked": (BATCH, 15, {0}, ({0}, {0})),
    "its scale low as well": (BATCH, 15, {0, 1}, "no form with just these inputs"),
    "one type for all": (BATCH, 14, None, "has one type for data and statistics"),
    "one type for all, whatever is asked for": (BATCH, 14, {0}, "has one type for data and statistics"),
    "Dropout": (DROPOUT, 13, None, ({0}, {0})),
    "Dropout whose ratio is an attribute": ("(float[2] x) => (float[2] y) { y = Dropout (x) }", 10, None, ({0}, {0})),
    "another operator needs its kernel": (MAXPOOL, 22, None, "no bfloat16 kernel for MaxPool-22"),
    "another domain": (OWN_BATCH, 15, None, "no schema is known"),
}


@pytest.mark.parametrize("name", LOWERED)
def test_operators_that_training_lowers_need_no_kernel(name):
    text, opset, inputs, expected = LOWERED[name]
    model = ir.from_proto(parse(text, opset=opset, imports=IMPORTS))
    propagate_types(model)
    low = BFLOAT16 if "bfloat16" in expected else FLOAT16
    asked = None if inputs is None else frozenset(inputs)
    low_form = Constraints(model, CUDA, low, training=True).of(model.graph[0], inputs=asked)
    if isinstance(expected, str):
        assert low_form.form is None
        assert expected in str(low_form.reason)
    else:
        assert (set(low_form.form.inputs), set(low_form.form.outputs)) == expected


EXACTLY = {
    # name: (graph, low inputs asked for, whether there is such a form)
    "the result alone": (EYE, set(), True),
    "the operand alone": (EYE, {0}, True),
    "the first type of a node without a float result": (QUANTIZE, {0}, True),
    "its second type alone": (QUANTIZE, {1}, False),
    "all": (RESIZE, {0}, True),
    "none": (RESIZE, set(), False),
    "one that stays float32": (RESIZE, {0, 2}, False),
    "half of one type": (MATMUL, {0}, False),
    "both of one type": (MATMUL, {0, 1}, True),
}


@pytest.mark.parametrize("name", EXACTLY)
def test_a_form_with_exactly_these_inputs(name):
    text, inputs, exists = EXACTLY[name]
    opset, target = (23, "tensorrt") if text in (EYE, QUANTIZE) else (18, "cuda")
    model = ir.from_proto(parse(text, opset=opset))
    propagate_types(model)
    low_form = Constraints(model, TARGETS[target], FLOAT16).of(model.graph[0], inputs=frozenset(inputs))
    if exists:
        assert low_form.form.inputs == inputs
    else:
        assert low_form.form is None
        assert "no form with just these inputs" in str(low_form.reason)
        assert not low_form.missing_kernel


def test_a_function_is_judged_by_its_body_in_the_low_format():
    """A target with a kernel for nothing but the body's operators, in float32 alone or in float16 too."""

    class Body(Target):
        name, newest_opset, types = "body", 26, frozenset()

        def has_kernel(self, operator):
            return operator.op_type != "HardSwish" and set(operator.inputs) <= self.types

    model = ir.from_proto(parse("(float[2] x) => (float[2] y) { y = HardSwish (x) }"))
    propagate_types(model)
    for types, low in ((("tensor(float)",), False), (("tensor(float)", "tensor(float16)"), True)):
        target = Body()
        target.types = frozenset(types)
        assert (Constraints(model, target, FLOAT16).of(model.graph[0]).form is not None) is low


def test_bfloat16_of_other_domains_needs_a_cast():
    """com.microsoft has it at every opset, but the Cast in front of it only from 13 on."""
    for opset, expected in ((12, "the schema of Cast-12 does not permit bfloat16"), (13, "")):
        low_form = judged(FUSED, opset, "bfloat16", "cuda")
        assert str(low_form.reason or "") == expected


def test_an_attribute_may_fix_the_type_of_an_output():
    text = "(float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] m) { y, m = LayerNormalization (x, s) }"
    low_form = judged(text, 18, "float16", "any")
    assert set(low_form.form.outputs) == {0}, "stash_type says that the mean is float32"


def test_any_provider_will_do_if_one_is_asked_for():
    """The target itself, or the last one that it falls back to."""

    first, second, last = Knows(), Knows(), Knows()
    first.fallback, second.fallback = second, last
    first.operators, second.operators, last.operators = ("Relu",), ("Tanh",), ("Erf",)
    first.float32_alone = ("Tanh", "Erf")
    body = "[relu] a = Relu (x) [tanh] b = Tanh (a) [erf] c = Erf (b) [neg] y = Neg (c)"
    model = ir.from_proto(parse(f"(float[2] x) => (float[2] y) {{ {body} }}"))
    propagate_types(model)
    constraints = Constraints(model, first, FLOAT16)
    assert [constraints.of(node).form is not None for node in model.graph] == [True, False, False, False]
    has_form = [constraints.of(node, anywhere=True).form is not None for node in model.graph]
    assert has_form == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "float32_alone", "expected"),
    [
        ("(float[2] x) => (float[2] y) { y = Erf (x) }", (), True),
        ("(float[2] x) => (float[2] y) { y = Erf (x) }", ("Erf",), False),
        ("(float[2] x, float s) => (uint8[2] y) { y = QuantizeLinear (x, s) }", (), False),
    ],
    ids=["nowhere else", "it would leave the target", "only integers come out"],
)
def test_what_the_fallback_runs_in_float32_it_may_run_low(text, float32_alone, expected):
    target, fallback = Knows(), Knows()
    target.fallback, target.float32_alone = fallback, float32_alone
    fallback.operators = ("Erf", "QuantizeLinear")
    model = ir.from_proto(parse(text, opset=21))
    propagate_types(model)
    assert (Constraints(model, target, FLOAT16).of(model.graph[0]).form is not None) is expected


def test_a_node_of_another_domain_is_judged_at_its_own_version():
    model = ir.from_proto(parse(FUSED, opset=18, imports=IMPORTS))
    propagate_types(model)
    assert Constraints(model, CUDA, FLOAT16).of(model.graph[0], opset=22).form is not None


def test_a_node_can_be_judged_at_another_opset():
    model = ir.from_proto(parse(CONV, opset=18))
    propagate_types(model)
    constraints = Constraints(model, CUDA, BFLOAT16)
    assert constraints.of(model.graph[0]).form is None
    assert constraints.of(model.graph[0], opset=22).form is not None


class Half(Target):
    """A further backend: MatMul in float16, up to opset 20."""

    name, newest_opset = "half", 20

    def has_kernel(self, operator):
        return operator.op_type == "MatMul" and operator.bound_types["T"] == "float16"


def test_a_further_backend_is_an_object():
    model = ir.from_proto(parse("(float[2,4] x, float[4,4] w) => (float[2,4] y) { h = MatMul (x, w) y = Relu (h) }"))
    propagate_types(model)
    half, wide = Constraints(model, Half(), FLOAT16), Constraints(model, Half(), BFLOAT16)
    assert [half.of(node).form is not None for node in model.graph] == [True, False]
    assert "no float16 kernel for Relu-14 on half" in str(half.of(model.graph[1]).reason)
    assert [wide.of(node).form for node in model.graph] == [None, None]


FLOATS = {"float": True, "float16": False, "double": False, "int64": False, "bool": False}


@pytest.mark.parametrize("dtype", FLOATS)
def test_only_float32_is_ever_touched(dtype):
    model = ir.from_proto(parse(f"({dtype}[2] x) => ({dtype}[2] y) {{ y = Identity (x) }}"))
    assert is_float32(model.graph.inputs[0]) == FLOATS[dtype]
    assert touches_float32(model.graph[0]) == FLOATS[dtype]
    assert not is_float32(None)


TOUCHES = {
    # call: whether a float32 tensor goes in or out
    "y = Shape (x)": True,
    "y = Gather (x, i)": True,
    "y = ConstantOfShape (i)": True,
    "y = Add (i, i)": False,
    "y, z = my.domain.Any (i)": True,
}


@pytest.mark.parametrize("call", TOUCHES)
def test_a_float32_tensor_that_goes_in_or_out(call):
    model = ir.from_proto(
        parse(f"(float[2] x, int64[2] i) => (int64[2] o) <float z> {{ {call} o = Neg (i) }}", imports=IMPORTS)
    )
    propagate_types(model)
    assert touches_float32(model.graph[0]) is TOUCHES[call]


def test_a_sequence_of_float32_is_no_float32_tensor():
    model = ir.from_proto(parse("(seq(float[2]) x) => (int64 y) { y = SequenceLength (x) }"))
    assert not is_float32(model.graph.inputs[0])


# values: fault where strict, fault where not; None for none
FAULTS = {
    "ordinary": ([1.0, -2.0], None, None),
    "beyond": ([70000.0], "beyond float16's 65504", "beyond float16's 65504"),
    "mask": ([-1e9], "beyond float16's 65504", None),
    "flushes": ([1e-9, 2e-9], "loses", "loses"),
    "a lone epsilon": ([1e-9], "loses", None),
    "infinite": ([np.inf], None, None),
    "empty": ([], None, None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_constants(name):
    values, *expected = FAULTS[name]
    tensor = ir.tensor(np.array(values, np.float32))
    for strict, part in zip((True, False), expected, strict=True):
        fault = range_fault(tensor, FLOAT16, strict)
        assert (part in str(fault)) if part else fault is None
        assert range_fault(tensor, BFLOAT16, strict) is None, "bfloat16 has float32's range"


def test_a_constant_is_looked_at_once():
    class Counted(ir.Tensor):
        reads = 0

        def numpy(self):
            Counted.reads += 1
            return super().numpy()

    value = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), const_value=Counted(array(4, 4) * 1e6))
    ir.Graph([], [], nodes=[], initializers=[value])
    ranges = RangeFaults(FLOAT16)
    assert "beyond" in str(ranges.of(value))
    reads = Counted.reads
    assert ranges.of(value) == ranges.of(value)
    assert Counted.reads == reads
    assert ranges.of(None) is None


@pytest.mark.parametrize("name", FAULTS)
def test_overflow_is_told_from_lost_digits(name):
    values, *expected = FAULTS[name]
    tensor = ir.tensor(np.array(values, np.float32))
    value = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)
    ir.Graph([], [], nodes=[], initializers=[value])
    for strict, part in zip((True, False), expected, strict=True):
        assert RangeFaults(FLOAT16, strict).overflows(value) == ("beyond" in (part or ""))
