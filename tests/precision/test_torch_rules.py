"""PyTorch's autocast: each class, native promotion, what it refuses."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.regions import FUNCTION_KEY
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program
from amp_transpiler.systems.torch.classes import TORCH_CLASSES, TorchClass
from amp_transpiler.systems.torch.rules import TorchRules
from amp_transpiler.targets import CUDA
from tests import support
from tests.support import array, parse

W = array(4, 4, seed=1, scale=0.5)
KERNEL = array(4, 4, 1, 1, seed=2, scale=0.3)
VECTOR = array(4, seed=3, low=0.5)
SCALES = np.array([1.0, 1.0, 2.0, 2.0], np.float32)

# What one node reads: x, z are float32 feeds, [4,4]; p, q are images; lx, lz, lp low; hx, hp float32.
HEAD = "(float[4,4] x, float[4,4] z, float[1,4,4,4] p, int64[4,4] at) => ({out} y)"
BEFORE = "lx = MatMul (x, w) lz = MatMul (z, w) lp = Conv (p, k) hx = Exp (x) hp = Exp (p)"


def typed(text, *, opset=20, imports="", **weights):
    model = ir.from_proto(parse(text, opset=opset, imports=imports, **weights))
    infer_shapes(model)
    propagate_types(model)
    return model


def rules(low=FLOAT16, **lists):
    return TorchRules(low, amp.AutoMixedPrecisionLists(dtype=low.name, **lists))


def assigned(model, *, low=FLOAT16, **lists):
    policy = Policy(low=low, target=CUDA, rules=rules(low, **lists))
    return assign(model, policy)


def rewritten(model, *, low=FLOAT16):
    """Carry the decisions out, in place."""
    ApplyAssignment(assigned(model, low=low))(model)
    verify(model, "the rewriting")


def decided(call, *, out="float[4,4]", low=FLOAT16, opset=20, imports="", **lists):
    """The decisions, by node name, for `call`, which may read the values above and weights w, k, v, s, one."""
    text = f"{HEAD.format(out=out)} {{ {BEFORE} {call} }}"
    weights = {"w": W, "k": KERNEL, "v": VECTOR, "scales": SCALES, "s": np.float32(2.0), "one": np.ones(1, np.float32)}
    weights["axis"] = np.array([1])
    weights["shift"] = np.zeros(4, np.float32)
    model = typed(text, opset=opset, imports=imports, **weights)
    decisions = assigned(model, low=low, **lists)
    return {node.name: decisions.decisions[node] for node in all_nodes(model) if node.name}


def of(call, **options):
    return decided(call, **options)["n"].precision


# ---- each operator of the lower_precision class with a kernel becomes low ----

GATES = "ww = Constant <value = float[1,{g},4] {{{gs}}}> () rr = Constant <value = float[1,{g},4] {{{gs}}}> ()"


def recurrent(op, gates):
    zeros = ",".join(["0.5"] * (gates * 16))
    constants = GATES.format(g=gates * 4, gs=zeros)
    return f"{constants} i3 = Unsqueeze (hx, axis) [n] y = {op} <hidden_size = 4> (i3, ww, rr)"


LOWER_PRECISION = {
    "Conv": ("[n] y = Conv (hp, k)", "float[1,4,4,4]", 20),
    "ConvTranspose": ("[n] y = ConvTranspose (hp, k)", "float[1,4,4,4]", 20),
    "MatMul": ("[n] y = MatMul (hx, z)", "float[4,4]", 20),
    "Gemm": ("[n] y = Gemm (hx, z, v)", "float[4,4]", 20),
    "Einsum": ('[n] y = Einsum <equation = "ij,jk->ik"> (hx, z)', "float[4,4]", 20),
    "PRelu": ("[n] y = PRelu (hx, v)", "float[4,4]", 20),
    "Attention": ("[n] y = Attention (hp, hp, hp)", "float[1,4,4,4]", 23),
    "LSTM": (recurrent("LSTM", 4), "float[4,1,4,4]", 20),
    "RNN": (recurrent("RNN", 1), "float[4,1,4,4]", 20),
    "com.microsoft::FusedMatMul": ("[n] y = com.microsoft.FusedMatMul (hx, z)", "float[4,4]", 20),
}


@pytest.mark.parametrize("name", LOWER_PRECISION)
def test_lower_precision_operators_become_low(name):
    call, out, opset = LOWER_PRECISION[name]
    decision = decided(call, out=out, opset=opset, imports=', "com.microsoft": 1')["n"]
    assert decision.precision == "low"
    assert str(decision.reason).endswith("runs in lower precision")
    assert decision.form.inputs


@pytest.mark.parametrize("call", [recurrent("GRU", 3), "[n] y = com.microsoft.GemmFastGelu (hx, z)"])
def test_what_onnx_runtime_has_no_low_kernel_for_stays_float32(call):
    out = "float[4,1,4,4]" if "GRU" in call else "float[4,4]"
    decision = decided(call, out=out, imports=', "com.microsoft": 1')["n"]
    assert decision.precision == "high"
    assert "no float16 kernel" in str(decision.reason)


# ---- each fp32 operator fed a low value stays float32 ----

UNARY = "Acos Asin Cosh Sinh Tan Exp Log Reciprocal Softplus Softmax LogSoftmax LpNormalization"
REDUCTIONS = "ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp"
FP32 = {
    **{name: (f"[n] y = {name} (lx)", "float[4,4]", 20) for name in UNARY.split()},
    **{name: (f"[n] y = {name} (lx)", "float[1,1]", 20) for name in REDUCTIONS.split()},
    "Pow": ("[n] y = Pow (lx, lz)", "float[4,4]", 20),
    "Pow, a number": ("[n] y = Pow (lx, s)", "float[4,4]", 20),
    "CumSum": ("a = Constant <value = int64 {1}> () [n] y = CumSum (lx, a)", "float[4,4]", 20),
    "LayerNormalization": ("[n] y = LayerNormalization (lx, v)", "float[4,4]", 20),
    "RMSNormalization": ("[n] y = RMSNormalization (lx, v)", "float[4,4]", 23),
    "GroupNormalization": ("[n] y = GroupNormalization <num_groups = 2> (lp, v, shift)", "float[1,4,4,4]", 21),
    "LRN": ("[n] y = LRN <size = 3> (lp)", "float[1,4,4,4]", 20),
    "LpPool": ("[n] y = LpPool <kernel_shape = [2, 2]> (lp)", "float[1,4,3,3]", 20),
    "GlobalLpPool": ("[n] y = GlobalLpPool (lp)", "float[1,4,1,1]", 20),
    "Resize": ("[n] y = Resize (lp, , scales)", "float[1,4,8,8]", 20),
    "Upsample": ("[n] y = Upsample (lp, scales)", "float[1,4,8,8]", 9),
    "NegativeLogLikelihoodLoss": (
        "t = Constant <value = int64[4] {0,1,2,3}> () [n] y = NegativeLogLikelihoodLoss (lx, t)",
        "float",
        20,
    ),
    "SoftmaxCrossEntropyLoss": (
        "t = Constant <value = int64[4] {0,1,2,3}> () [n] y = SoftmaxCrossEntropyLoss (lx, t)",
        "float",
        20,
    ),
    "com.microsoft::SkipLayerNormalization": (
        "l3 = Unsqueeze (lx, axis) [n] y = com.microsoft.SkipLayerNormalization (l3, l3, v)",
        "float[4,1,4]",
        20,
    ),
    "com.microsoft::BiasSoftmax": (
        "[n] y = com.microsoft.BiasSoftmax <axis = 1, is_inner_broadcast = 0> (lx, lz)",
        "float[4,4]",
        20,
    ),
}


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", FP32)
def test_fp32_operators_fed_a_low_value_stay_float32(name, low):
    call, out, opset = FP32[name]
    assert TORCH_CLASSES[name.partition(",")[0]][0] is TorchClass.FP32
    assert of(call, out=out, opset=opset, low=low, imports=', "com.microsoft": 1') == "high"


def test_the_reason_names_torchs_class():
    assert str(decided("[n] y = Softmax (lx)")["n"].reason) == "torch: softmax runs in float32"


# ---- each row of the table, kernels aside ----


class Everything:
    """A state in which every value is low, or none is."""

    def __init__(self, low):
        self.low = low

    def is_low(self, _value):
        return self.low


def by_table(key, *, low):
    domain, _, op_type = key.rpartition("::")
    reads = [ir.val(name, ir.DataType.FLOAT, [4, 4]) for name in ("a", "b")]
    node = ir.Node(domain, op_type, reads, num_outputs=1)
    return rules().decide(node, LowForm(frozenset({0, 1}), frozenset({0})), Everything(low))


@pytest.mark.parametrize("key", TORCH_CLASSES)
def test_each_operator_does_as_its_class_says(key):
    answers = (by_table(key, low=True).precision, by_table(key, low=False).precision)
    follows = ("low", "high") if not key.endswith("Range") else ("high", "high")
    expected = {
        TorchClass.LOWER_PRECISION_FP: ("low", "low"),
        TorchClass.FP32: ("high", "high"),
        TorchClass.PROMOTE: follows,
        TorchClass.FALL_THROUGH: follows,
    }
    assert answers == expected[TORCH_CLASSES[key][0]]


# ---- promotion ----

TWO = {
    # name: (call of two values, its output)
    "Add": ("Add ({}, {})", "float[4,4]"),
    "Sub": ("Sub ({}, {})", "float[4,4]"),
    "Mul": ("Mul ({}, {})", "float[4,4]"),
    "Div": ("Div ({}, {})", "float[4,4]"),
    "Max": ("Max ({}, {})", "float[4,4]"),
    "Sum": ("Sum ({}, {})", "float[4,4]"),
    "Concat": ("Concat <axis = 0> ({}, {})", "float[8,4]"),
    "Where": ("Where (c, {}, {})", "float[4,4]"),
    "ScatterElements": ("ScatterElements ({0}, at, {1})", "float[4,4]"),
    "ScatterElements, add": ('ScatterElements <reduction = "add"> ({0}, at, {1})', "float[4,4]"),
    "ScatterND": ("ScatterND ({0}, rows, {1})", "float[4,4]"),
    "Equal": ("Equal ({}, {})", "bool[4,4]"),
    "Less": ("Less ({}, {})", "bool[4,4]"),
    "LessOrEqual": ("LessOrEqual ({}, {})", "bool[4,4]"),
    "Greater": ("Greater ({}, {})", "bool[4,4]"),
    "GreaterOrEqual": ("GreaterOrEqual ({}, {})", "bool[4,4]"),
}
ROWS = "rows = Constant <value = int64[4,1] {0,1,2,3}> () c = Equal (at, at)"


@pytest.mark.parametrize("name", TWO)
def test_promotion_of_two(name):
    call, out = TWO[name]
    precisions = {
        first + second: of(f"{ROWS} [n] y = {call.format(first + 'x', second + 'z')}", out=out, opset=18)
        for first, second in (("l", "l"), ("l", ""), ("h", "l"), ("h", ""))
    }
    assert precisions == {"ll": "low", "l": "high", "hl": "high", "h": "high"}


@pytest.mark.parametrize("name", ["Equal", "Less", "Greater"])
def test_comparisons_of_mixed_inputs_give_bool(name):
    text = f"(float[4,4] x, float[4,4] z) => (bool[4,4] y) {{ lx = MatMul (x, w) y = {name} (lx, z) }}"
    model = typed(text, w=W)
    rewritten(model)
    support.assert_valid(ir.to_proto(model))
    assert model.graph.outputs[0].dtype == ir.DataType.BOOL


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("g = Tanh (z2) [n] y = GridSample (lp, g)", "high"),
        ("g = Conv (z2, kg) [n] y = GridSample (lp, g)", "high"),
    ],
)
def test_grid_sample_is_promoted(call, expected):
    text = f"(float[1,4,4,4] p, float[1,3,3,2] z2) => (float[1,4,3,3] y) {{ lp = Conv (p, k) {call} }}"
    model = typed(text, opset=16, k=KERNEL, kg=array(3, 3, 1, 1))
    decisions = assigned(model)
    assert {n.name: decisions.decisions[n].precision for n in all_nodes(model)}["n"] == expected


# ---- what falls through ----

FALLS_THROUGH = {
    # what: the call, its output, the precision of node n
    "low stays low": ("[n] y = Relu (lx)", "float[4,4]", "low"),
    "float32 stays float32": ("[n] y = Relu (hx)", "float[4,4]", "high"),
    "a feed is float32": ("[n] y = Relu (x)", "float[4,4]", "high"),
    "mean keeps the input's type": ("[n] y = ReduceMean (lx)", "float[1,1]", "low"),
    "gelu keeps the input's type": ("[n] y = Gelu (lx)", "float[4,4]", "low"),
    "sqrt is on no list, unlike rsqrt": ("[n] y = Sqrt (lx)", "float[4,4]", "low"),
    "through a chain": ("a = Tanh (lx) b = Sigmoid (a) [n] y = Mul (a, b)", "float[4,4]", "low"),
    "a parameter is float32": ("[n] y = Mul (lx, v)", "float[4,4]", "high"),
    "a bias of a product is part of it": ("[n] y = Add (lx, v)", "float[4,4]", "low"),
    "a 0-dim constant is a number": ("[n] y = Mul (lx, s)", "float[4,4]", "low"),
    "a constant of one element is a number": ("[n] y = Mul (one, lx)", "float[4,4]", "low"),
    "value_float is a number": ("m = Constant <value_float = 2.0> () [n] y = Mul (lx, m)", "float[4,4]", "low"),
    "value_floats of one": ("m = Constant <value_floats = [2.0]> () [n] y = Mul (lx, m)", "float[4,4]", "low"),
    "value_floats of four": (
        "m = Constant <value_floats = [2.0, 1.0, 1.0, 1.0]> () [n] y = Mul (lx, m)",
        "float[4,4]",
        "high",
    ),
    "a float32 0-dim tensor does not widen": (
        "m = ReduceSum <keepdims = 0> (x) [n] y = Mul (lx, m)",
        "float[4,4]",
        "low",
    ),
    "a low 0-dim tensor does not narrow": (
        "m = ReduceMean <keepdims = 0> (lx) [n] y = Mul (hx, m)",
        "float[4,4]",
        "high",
    ),
    "0-dim and a number": ("m = ReduceMean <keepdims = 0> (lx) [n] y = Mul (m, s)", "float", "low"),
    "float32 0-dim and low 0-dim": (
        "m = ReduceMean <keepdims = 0> (lx) e = ReduceSum <keepdims = 0> (lx) [n] y = Mul (m, e)",
        "float",
        "high",
    ),
    "a tensor of one element is no number": (
        "m = ReduceSum (x) [n] y = Mul (lx, m)",
        "float[4,4]",
        "high",
    ),
    "clip with numbers": ("[n] y = Clip (lx, s)", "float[4,4]", "low"),
    "batch_norm follows its data": (
        "[n] y = BatchNormalization (lp, v, shift, shift, v)",
        "float[1,4,4,4]",
        "low",
    ),
    "batch_norm of float32": ("[n] y = BatchNormalization (hp, v, shift, shift, v)", "float[1,4,4,4]", "high"),
    "instance_norm follows its data": ("[n] y = InstanceNormalization (lp, v, shift)", "float[1,4,4,4]", "low"),
    "arange": ("h = Constant <value_float = 4.0> () [n] r = Range (s, h, s) y = Add (r, lx)", "float[4,4]", "high"),
    "randn": ("[n] r = RandomNormal <shape = [4, 4]> () y = Add (r, lx)", "float[4,4]", "high"),
    "randn_like": ("[n] y = RandomNormalLike (lx)", "float[4,4]", "low"),
    "the user's own cast back": ("u = Cast <to = 1> (lx) [n] y = Relu (u)", "float[4,4]", "high"),
    "reshape": ("[n] y = Transpose (lx)", "float[4,4]", "low"),
    "pooling": ("[n] y = AveragePool <kernel_shape = [4, 4]> (lp)", "float[1,4,1,1]", "low"),
}


@pytest.mark.parametrize("name", FALLS_THROUGH)
def test_native_promotion(name):
    call, out, expected = FALLS_THROUGH[name]
    assert of(call, out=out) == expected


def test_numbers_alone_make_a_float32():
    model = typed(
        "(float f, bool c) => (float y) { [n] y = Where (c, s, s) }", s=np.float32(2.0), one=np.ones(1, np.float32)
    )
    decisions = assigned(model)
    decision = next(iter(decisions.decisions.values()))
    assert decision.precision == "high"
    assert "numbers" in str(decision.reason)


def test_an_operator_without_a_row_falls_through():
    assert "my.domain::Blend" not in TORCH_CLASSES
    answers = [by_table("my.domain::Blend", low=low) for low in (True, False)]
    assert [decision.precision for decision in answers] == ["low", "high"]
    assert "my.domain::Blend" in str(answers[0].reason)


# ---- the user's lists, the demo, bfloat16 ----

LISTED = {
    # what: the call, the lists, the precision of node n
    "white Exp": ("[n] y = Exp (lx)", {"custom_white_list": ["Exp"]}, "low"),
    "white Add": ("[n] y = Add (hx, x)", {"custom_white_list": ["Add"]}, "low"),
    "black MatMul": ("[n] y = MatMul (lx, w)", {"custom_black_list": ["MatMul"]}, "high"),
    "black Relu": ("[n] y = Relu (lx)", {"custom_black_list": ["Relu"]}, "high"),
    "a black name": ("[n] y = Relu (lx)", {"custom_black_varnames": ["lx"]}, "high"),
}


@pytest.mark.parametrize("name", LISTED)
def test_the_users_own_lists_come_first(name):
    call, lists, expected = LISTED[name]
    if lists.get("custom_black_list") == ["MatMul"]:
        call = call.replace("lx", "hx")
    assert of(call, **lists) == expected


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
def test_the_autocast_demo(low):
    """`rocm_blog_pytorch_amp`: of two float32 operands the product is low, their sum float32."""
    text = (
        "(float[4,4] a, float[4,4] b) => (float[4,4] c, float[4,4] d) { [mm] c = MatMul (a, b) [sum] d = Add (a, b) }"
    )
    model = typed(text)
    decisions = assigned(model, low=low)
    assert {n.name: decisions.decisions[n].precision for n in model.graph} == {"mm": "low", "sum": "high"}
    rewritten(model, low=low)
    dtypes = {node.name: node.outputs[0].dtype for node in model.graph}
    assert (dtypes["mm"], dtypes["sum"]) == (low.dtype, ir.DataType.FLOAT)


def test_bfloat16_has_the_same_classes():
    calls = {name: row[0] for name, row in FALLS_THROUGH.items() if row[1] == "float[4,4]"}
    del calls["clip with numbers"]  # ONNX Runtime has no bfloat16 kernel for it
    same = {name: of(call, low=BFLOAT16, opset=22) for name, call in calls.items()}
    assert same == {name: FALLS_THROUGH[name][2] for name in calls}


# ---- a weight is cast once however often it is used ----


def test_one_cast_of_a_weight_that_several_products_share():
    text = """(float[4,4] x, float[4,4] weight) => (float[4,4] y) {
        a = MatMul (x, weight) b = MatMul (a, weight) c = MatMul (b, weight) y = Relu (c)
    }"""
    model = typed(text)
    rewritten(model)
    down = [n.inputs[0].name for n in model.graph if n.op_type == "Cast" and n.outputs[0].dtype == FLOAT16.dtype]
    assert sorted(down) == ["weight", "x"]  # torch: 1 cast of the weight with its cache, 3 without
    up = [n for n in model.graph if n.op_type == "Cast" and n.outputs[0].dtype == ir.DataType.FLOAT]
    assert len(up) == 1  # of the graph output, which keeps its type
    assert all(not is_float32(v) for n in model.graph if n.op_type == "MatMul" for v in n.inputs)
    support.assert_valid(ir.to_proto(model))


# ---- what torch refuses ----


def built(loss, *, disabled=False):
    main = Program()
    with program_guard(main, Program()):
        scores, label = data("scores", [None, 4], "float32"), data("label", [None, 4], "float32")
        if disabled:
            with amp.disable_amp():
                loss(scores, label)
        else:
            loss(scores, label)
    return main.model


def test_binary_cross_entropy_is_refused():
    model = built(F.binary_cross_entropy)
    with pytest.raises(OptionError, match=r"binary_cross_entropy is unsafe to autocast; use .*_with_logits"):
        rules().begin(model)
    with pytest.raises(ValueError, match="disable_amp"):
        assigned(model)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_node_of_binary_cross_entropy_is_marked_and_none_of_others(reduction):
    model = built(lambda p, y: F.mse_loss(F.binary_cross_entropy(p, y, reduction=reduction), y, reduction=reduction))
    marked = [FUNCTION_KEY in node.metadata_props for node in model.graph]
    assert marked == sorted(marked, reverse=True)
    assert {n.op_type for n in model.graph if FUNCTION_KEY in n.metadata_props} >= {"Log", "Where", "Neg"}
    assert not marked[-1]


def test_binary_cross_entropy_is_not_refused_inside_disable_amp():
    model = built(F.binary_cross_entropy, disabled=True)
    assert {d.precision for d in assigned(model).decisions.values()} <= {"high", "untouched"}


def test_binary_cross_entropy_with_logits_is_accepted():
    model = built(F.binary_cross_entropy_with_logits)
    assert not any(FUNCTION_KEY in node.metadata_props for node in model.graph)
    assert assigned(model).decisions


def test_the_mark_of_binary_cross_entropy_survives_a_file(tmp_path):
    main = Program()
    with program_guard(main, Program()):
        F.binary_cross_entropy(data("p", [2, 4], "float32"), data("q", [2, 4], "float32"))
    main.model.graph.outputs.append(main.model.graph[-1].outputs[0])
    onnx.save(ir.to_proto(main.model), tmp_path / "loss.onnx")
    loaded = amp.load(tmp_path / "loss.onnx")
    with pytest.raises(OptionError, match="unsafe to autocast"):
        rules().begin(loaded.model)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        pytest.param({"b": array(4)}, "low", id="a vector of parameters is linear's bias"),
        pytest.param({"b": array(4, 4)}, "high", id="a matrix is added"),
        pytest.param({}, "high", id="what is no parameter is added"),
    ],
)
@pytest.mark.parametrize("call", ["Add (m, b)", "Add (b, m)"])
def test_the_bias_of_a_linear_layer_is_part_of_it(call, bias, expected):
    inputs = "" if bias else ", float[4] b"
    graph = f"(float[4,4] x{inputs}) => (float[4,4] y) {{ m = MatMul (x, w) [add] y = {call} }}"
    report = amp.transpile(parse(graph, w=array(4, 4), **bias), policy="torch")
    assert support.decisions(report)["add"] == expected
