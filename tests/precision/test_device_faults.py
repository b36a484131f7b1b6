"""What CUDA computes wrongly in 16 bits stays float32, at every level, or is written in a form that is right."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.device_faults import DeviceFaults, faulty_operators
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.row_sums import RowSum, row_sum
from amp_transpiler.targets import CUDA, arithmetic, find_target
from amp_transpiler.targets.arithmetic import _file, parsed
from tests import support

DEVICE = "NVIDIA H100, ONNX Runtime 1.31"
ANY_ORDER = "adds 16-bit partial sums in any order: another result in every run"
STEPS = "rounds exp(x) before it subtracts 1, so small negative inputs lose their digits"
SEVERAL = "leading axes, several blocks"


def past(size, value_size=None):
    """Attention with a past whose heads have these sizes."""
    value_size = size if value_size is None else value_size
    inputs = (
        f"float[1,2,3,{size}] x, float[1,2,3,{size}] k, float[1,2,3,{value_size}] v, "
        f"float[1,2,5,{size}] pk, float[1,2,5,{value_size}] pv"
    )
    outputs = f"float[1,2,3,{value_size}] y, float[1,2,8,{size}] pq, float[1,2,8,{value_size}] pw"
    return inputs, outputs, "y, pq, pw = Attention(x, k, v, m, pk, pv)"


def one(shape, call, result="", constants=""):
    return f"float[{shape}] x", f"float[{result or shape}] y", call, constants


def reduced(op_type, shape, axes, result, keepdims=1):
    listed = ",".join(map(str, axes))
    return one(shape, f"y = {op_type}<keepdims={keepdims}>(x, ax)", result, f"int64[{len(axes)}] ax = {{{listed}}}")


def quick(_=None):
    return one("4,6", "y = com.microsoft.QuickGelu<alpha=1.702>(x)")


# (operator, format, condition) -> why, and nodes that have the fault beside nodes that do not
CASES = {
    ("Elu", "float16", ""): (STEPS, [one("4", "y = Elu(x)")], []),
    ("Elu", "bfloat16", ""): (STEPS, [one("4", "y = Elu(x)")], []),
    ("Gelu", "float16", "tanh, count not known to be even"): (
        "never writes the last element of an odd count",
        [one(shape, 'y = Gelu<approximate="tanh">(x)') for shape in ("3", "1,3,5", "N,5", "N,M")],
        [one(shape, 'y = Gelu<approximate="tanh">(x)') for shape in ("4", "2,3,5", "N,6")] + [one("3", "y = Gelu(x)")],
    ),
    ("com.microsoft::FastGelu", "float16", "count not known to be even"): (
        "never writes the last element of an odd count",
        [one(shape, "y = com.microsoft.FastGelu(x)") for shape in ("3", "1,3,5", "N,5", "N,M")],
        [one(shape, "y = com.microsoft.FastGelu(x)") for shape in ("4", "2,3,5", "N,6")],
    ),
    ("Selu", "float16", ""): (STEPS, [one("4", "y = Selu(x)")], []),
    ("Sigmoid", "bfloat16", ""): ("is 0 for every probability below 0.0039", [one("4", "y = Sigmoid(x)")], []),
    ("Softplus", "float16", ""): ("is 0 for inputs below -7.6", [one("4", "y = Softplus(x)")], []),
    ("Softplus", "bfloat16", ""): ("is 0 for inputs below -5.5", [one("4", "y = Softplus(x)")], []),
    ("com.microsoft::QuickGelu", "float16", ""): (
        "rounds every step of x * Sigmoid(x): twice the error of a Sigmoid and a Mul, 15 times below zero",
        [quick()],
        [],
    ),
    ("CumSum", "float16", "more than 2048 terms"): (
        "adds in float16, where a sum of ones stops at 2048",
        [one(shape, "y = CumSum(x, ax)", constants="int64 ax = {0}") for shape in ("2049,2", "N,2")]
        + [one("2,2049", "y = CumSum(x, ax)", constants="int64 ax = {-1}")],
        [one(shape, "y = CumSum(x, ax)", constants="int64 ax = {0}") for shape in ("2048,2", "2,N")]
        + [one("2,2048", "y = CumSum(x, ax)", constants="int64 ax = {-1}")],
    ),
    **{
        ("ReduceL1", name, SEVERAL): (
            ANY_ORDER,
            [
                reduced("ReduceL1", "128,32", [0], "1,32"),
                reduced("ReduceL1", "2048,2", [0], "1,2"),
                reduced("ReduceL1", "1,128,1,32", [1], "1,1,1,32"),
                reduced("ReduceL1", "4,32,32", [0, 1], "1,1,32"),
                reduced("ReduceL1", "N,32", [0], "1,32"),
                reduced("ReduceL1", "N,T,32", [1], "N,1,32"),
            ],
            [
                reduced("ReduceL1", "127,32", [0], "1,32"),
                reduced("ReduceL1", "2047,2", [0], "1,2"),
                reduced("ReduceL1", "32,128", [1], "32,1"),
                reduced("ReduceL1", "2,128,32", [1], "2,1,32"),
                reduced("ReduceL1", "8192,1", [0], "1,1"),
                reduced("ReduceL1", "32,N", [1], "32,1"),
            ],
        )
        for name in ("bfloat16",)
    },
    **{
        (op_type, name, SEVERAL): (
            ANY_ORDER,
            [reduced(op_type, "N,32", [0], "1,32"), reduced(op_type, "2048,4,N", [0], "1,4,N")],
            [reduced(op_type, "100,4,N", [0], "1,4,N"), reduced(op_type, "32,N", [1], "32,1")],
        )
        for op_type in ("ReduceMean", "ReduceSum")
        for name in ("float16", "bfloat16")
    },
    **{
        ("ReduceSumSquare", name, SEVERAL): (
            ANY_ORDER,
            [reduced("ReduceSumSquare", "128,32", [0], "1,32")],
            [reduced("ReduceSumSquare", "127,32", [0], "1,32")],
        )
        for name in ("float16", "bfloat16")
    },
    ("ReduceMean", "float16", "leading or trailing axes, 65520 terms or more"): (
        "divides by a count that float16 does not hold",
        [reduced("ReduceMean", "2,65520", [1], "2,1"), reduced("ReduceMean", "65536", [0], "1")],
        [reduced("ReduceMean", "2,65520,2", [1], "2,1,2"), reduced("ReduceMean", "2,4094", [1], "2,1")],
    ),
    **{
        ("Attention", name, "a past, and a head size that is no multiple of 4"): (
            "garbles the keys and values of the past",
            [past(10), past(8, 6)],
            [past(4), past(8), past(8, 4)],
        )
        for name in ("float16", "bfloat16")
    },
}
# Faults of older releases, most often of what they fuse: tests/passes/test_part_fusions.py.
OLD = {f"com.microsoft::{name}LayerNormalization" for name in ("Embed", "Skip", "SkipSimplified")}
LOW = {"float16": FLOAT16, "bfloat16": BFLOAT16}
OPSETS = {"Softplus": 22, "Attention": 23, "Gelu": 20}


def model(case, opset=20):
    inputs, outputs, call, *constants = case
    if "m, pk" in call:
        inputs += ", float[3,8] m"
    listed = f"<{constants[0]}>" if constants and constants[0] else ""
    text = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g ({inputs}) => ({outputs}) {listed}'
    return onnx.parser.parse_model(f"{text} {{ [it] {call} }}")


def decision(case, dtype, operator, **options):
    options = {name: value for name, value in {"level": "O2", **options}.items() if value is not None}
    opset = OPSETS.get(operator, 20)
    report = amp.transpile(model(case, opset), dtype=dtype, verify=False, **options, prefer="size")
    (row,) = (row for row in report.decisions if row.name == "it")
    return row


def flat(side):
    return [
        pytest.param(key, case, id=f"{key[0]} {key[1]} {index}")
        for key, (_, *sides) in CASES.items()
        for index, case in enumerate(sides[side])
        if key[:2] != ("Elu", "bfloat16")  # since opset 22, where CUDA has no kernel for it
    ]


def test_every_fault_of_the_table_has_a_case():
    faults = {(row.operator, name, row.condition) for row in _file()[1] if row.fault for name in row.formats}
    assert {key for key in faults if key[0] not in OLD} == set(CASES)
    assert {key[0] for key in faults} - {key[0] for key in CASES} == OLD


@pytest.mark.parametrize(("key", "case"), flat(0))
def test_what_the_device_computes_wrongly_stays_float32(key, case):
    operator, dtype, _ = key
    row = decision(case, dtype, operator)
    assert (row.precision, row.reason) == (
        "high",
        f"{operator.split('::')[-1]} in {dtype} {CASES[key][0]} ({DEVICE})",
    )


@pytest.mark.parametrize(("key", "case"), flat(1))
def test_the_same_operator_is_low_where_the_condition_does_not_hold(key, case):
    assert decision(case, key[1], key[0]).precision == "low"


@pytest.mark.parametrize(
    "options",
    [{"level": "O1"}, {"level": "auto"}, {"policy": "torch", "level": "O1"}, {"policy": "raf", "level": None}],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_it_stays_float32_whatever_decides(options):
    case = one("4,4", "y = Sigmoid(x)")
    row = decision(case, "bfloat16", "Sigmoid", amp_lists=amp.AutoMixedPrecisionLists(["Sigmoid"]), **options)
    assert row.precision == "high"
    assert "below 0.0039" in row.reason


def test_include_forces_a_node_and_says_what_is_wrong():
    row = decision(one("4,4", "y = Sigmoid(x)"), "bfloat16", "Sigmoid", include="it")
    reason = "low by force (--include), though Sigmoid in bfloat16 is 0 for every probability below 0.0039"
    assert (row.precision, row.reason) == ("low", f"{reason} ({DEVICE})")


@pytest.mark.parametrize(
    ("target", "expected"), [("cuda", "high"), ("any", "high"), ("cpu", "low"), ("tensorrt", "low")]
)
def test_only_programs_for_cuda_are_touched(target, expected):
    assert decision(one("4,4", "y = Softplus(x)"), "float16", "", target=target).precision == expected


# Operator -> its reason, at an opset at which CUDA writes it out.
WRITTEN_OUT = {
    ("Mish", 22, "float16"): "CUDA computes Mish by its definition: Softplus in float16 is 0 for inputs below -7.6",
    ("Swish", 24, "bfloat16"): "",  # where its gate is lost, so is most of what that multiplies
    ("Swish", 24, "float16"): "",
}


@pytest.mark.parametrize(("op_type", "opset", "dtype"), WRITTEN_OUT)
def test_an_operator_without_a_kernel_has_the_faults_of_its_definition(op_type, opset, dtype):
    program = ir.from_proto(model(one("4,4", f"y = {op_type}(x)"), opset))
    propagate_types(program)
    (node,) = program.graph
    reason = WRITTEN_OUT[op_type, opset, dtype]
    expected = f"{reason} ({DEVICE})" if reason else ""
    assert str(DeviceFaults(program, CUDA, LOW[dtype], "H100").of(node) or "") == expected


def test_the_gate_of_a_silu_is_judged_with_it():
    def gate(product, dtype):
        proto = model(("float[2,8] x, float[2,8] z", "float[2,8] y", f"s = Sigmoid(x) y = Mul({product})"))
        program = ir.from_proto(proto)
        propagate_types(program)
        return DeviceFaults(program, CUDA, LOW[dtype], "H100").of(next(iter(program.graph)))

    assert gate("x, s", "bfloat16") is gate("s, x", "bfloat16") is None
    assert "below 0.0039" in str(gate("z, s", "bfloat16"))
    assert gate("x, s", "float16") is gate("z, s", "float16") is None


# ---- releases ----
@pytest.mark.parametrize(
    ("release", "operator", "low", "expected"),
    [
        ("1.26", "com.microsoft::SkipLayerNormalization", FLOAT16, True),
        ("1.27", "com.microsoft::SkipLayerNormalization", FLOAT16, False),
        ("1.26", "com.microsoft::EmbedLayerNormalization", FLOAT16, True),
        ("1.27", "com.microsoft::EmbedLayerNormalization", FLOAT16, False),
        ("1.26", "com.microsoft::SkipSimplifiedLayerNormalization", BFLOAT16, True),
        ("1.27", "com.microsoft::SkipSimplifiedLayerNormalization", BFLOAT16, False),
        ("1.20", "com.microsoft::QuickGelu", FLOAT16, True),
        ("1.31", "com.microsoft::QuickGelu", BFLOAT16, False),
        ("1.24", "Sigmoid", BFLOAT16, True),
        ("1.24", "Sigmoid", FLOAT16, False),
    ],
)
def test_which_operators_are_faulty_whatever_they_compute(release, operator, low, expected):
    assert (operator in faulty_operators(CUDA.of_release(release), low, "H100")) is expected
    assert not faulty_operators(find_target("cpu"), low, "H100")


def test_the_release_counts():
    fused = "y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, w)"
    case = one("2,4,8", fused, constants="float[8] w = {1,1,1,1,1,1,1,1}")
    row = decision(case, "float16", "", ort="1.24")
    assert row.reason == (
        "SkipSimplifiedLayerNormalization in float16 sums squares in 16 bits: zeros where values are large "
        "(NVIDIA H100, ONNX Runtime 1.24)"
    )
    assert decision(case, "float16", "").precision == "low"


def test_a_table_without_the_fault_lets_the_node_be_low(monkeypatch):
    facts, _ = _file()
    lines = ["operator | formats | condition | computes | sums in | noise | fault | releases | evidence"]
    lines += ["Sigmoid | bfloat16 | - | sigmoid_in_steps | - | 0 | - | - | bits"]
    monkeypatch.setattr("amp_transpiler.targets.arithmetic._file", lambda _: (facts, parsed(lines)[1]))
    arithmetic.arithmetic_of.cache_clear()
    try:
        assert decision(one("4,4", "y = Sigmoid(x)"), "bfloat16", "Sigmoid").precision == "low"
    finally:
        arithmetic.arithmetic_of.cache_clear()


# ---- the sum of a mean ----
MEANS = [  # terms, the largest mean that data showed, whether it may be float16
    (4094, None, True),
    (4095, None, False),
    (4095, 3.9, True),
    (4095, 4.1, False),
    (1000, 16.0, True),
    (1000, 16.5, False),
]


@pytest.mark.parametrize(("terms", "seen", "is_low"), MEANS)
def test_a_mean_whose_sum_may_leave_the_range_stays_float32(terms, seen, is_low):
    program = ir.from_proto(model(reduced("ReduceMean", f"2,{terms}", [1], "2,1")))
    propagate_types(program)
    faults = DeviceFaults(program, CUDA, FLOAT16, "H100")
    (node,) = program.graph
    ranges = {} if seen is None else {"y": TensorRange(seen)}
    assert (not faults.beyond_sum(node, ranges, headroom=4.0)) is is_low
    assert not DeviceFaults(program, CUDA, BFLOAT16, "H100").beyond_sum(node, ranges, headroom=4.0)
    assert not DeviceFaults(program, find_target("cpu"), FLOAT16, "H100").beyond_sum(node, ranges, headroom=4.0)


def test_the_reason_says_what_the_sum_would_be():
    row = decision(reduced("ReduceMean", "2,5000", [1], "2,1"), "float16", "")
    assert row.reason == (
        "CUDA's ReduceMean sums 5000 float16 numbers before it divides; means may reach 16, "
        "whose sum is beyond 6.55e+04"
    )


# ---- sums over rows as products ----
SUMS = {  # shape, axes, keepdims, opset -> what is written
    "rows of one matrix": ("300,24", [0], 1, 20, ["MatMul"]),
    "rows of one matrix, dropped": ("300,24", [0], 0, 20, ["MatMul", "Reshape"]),
    "rows behind a batch of one": ("1,300,24", [1], 0, 20, ["MatMul", "Reshape"]),
    "an open batch that is one": ("N,300,24", [1], 1, 20, ["MatMul"]),
    "two leading axes": ("3,100,24", [0, 1], 1, 20, ["Reshape", "MatMul", "Reshape"]),
    "all but two axes, at opset 11": ("300,4,6", [0], 0, 11, ["Reshape", "MatMul", "Reshape"]),
    "from the end": ("300,24", [-2], 1, 20, ["MatMul"]),
}


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(("shape", "axes", "keepdims", "opset", "written"), SUMS.values(), ids=SUMS)
def test_a_sum_over_rows_is_a_product_with_a_row(op_type, shape, axes, keepdims, opset, written):
    sizes = [int(size) if size.isdigit() else 1 for size in shape.split(",")]
    values = support.array(*sizes)
    by_input = opset >= 18 or (op_type == "ReduceSum" and opset >= 13)
    listed = ",".join(map(str, axes))
    attribute = "" if by_input else f", axes=[{listed}]"
    call = f"{op_type}<keepdims={keepdims}{attribute}>(x{', ax' if by_input else ''})"
    constants = f"<int64[{len(axes)}] ax = {{{listed}}}>" if by_input else ""
    expected = getattr(np, "sum" if op_type == "ReduceSum" else "mean")(
        values.astype(np.float16).astype(np.float64), tuple(axes), keepdims=bool(keepdims)
    )
    result = ",".join(map(str, expected.shape))
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{shape}] x) => (float[{result}] y)'
    proto = onnx.parser.parse_model(f"{text} {constants} {{ [it] y = {call} }}")
    report = amp.transpile(proto, level="O2", verify=False)
    converted = to_proto(report.program.model)
    onnx.checker.check_model(converted, full_check=True)
    kinds = [node.op_type for node in converted.graph.node if node.op_type not in ("Cast", "Constant")]
    assert kinds == written
    assert "ax" not in {tensor.name for tensor in converted.graph.initializer}
    assert support.reasons(report)["it" if "it" in support.reasons(report) else kinds[-1]]
    sums = support.run(converted, {"x": values})["y"]
    assert sums.shape == expected.shape
    assert np.abs(sums - expected).max() <= 1e-3 * np.abs(expected).max() + (1e-3 if op_type == "ReduceMean" else 0)


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((300, 24), [0], RowSum(300, 1.0, None, None)),
        ((3, 100, 24), [0, 1], RowSum(300, 1.0, (300, 24), (1, 1, 24))),
        ((None, 24), [0], None),  # how many rows there are is not known
        ((300, 4, None), [0], None),  # nor how wide they are as rows of one matrix
        ((300, 24), [0, 1], None),  # nothing is left
        ((2, 300, 4, 6), [1], None),
    ],
)
def test_which_sums_are_products(shape, axes, expected):
    case = reduced("ReduceSum", ",".join(str(size or "N") for size in shape), axes, ",".join("1" for _ in shape))
    (node,) = ir.from_proto(model(case)).graph
    assert row_sum(node, shape, FLOAT16) == expected


def test_a_mean_of_too_many_rows_is_no_product_in_float16():
    case = reduced("ReduceMean", "16385,4", [0], "1,4")
    (node,) = ir.from_proto(model(case)).graph
    assert row_sum(node, (16384, 4), FLOAT16) is not None
    assert row_sum(node, (16385, 4), FLOAT16) is None  # its weight would be subnormal
    assert row_sum(node, (16385, 4), BFLOAT16) is not None
