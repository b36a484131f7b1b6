"""Bytes, FLOPs, launches and predicted time of nodes, from shapes alone."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.cost import (
    DEVICES,
    Kernel,
    find_device,
    node_seconds,
    open_dims,
    predict,
    time_of,
    traffic,
)
from amp_transpiler.errors import OptionError

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'


def model_of(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def one(text: str, **dims: int):
    """The cost of the last node."""
    return traffic(model_of(text), dims)[-1]


TEN = ", ".join(f"x{i}" for i in range(10))
TEN_INPUTS = ", ".join(f"float[4] x{i}" for i in range(10))
# Inputs and one node; launches, bytes read, bytes written, FLOPs.
ROWS = [
    ("x + y", "(float[4, 8] x, float[4, 8] y) => (float[4, 8] z) { z = Add (x, y) }", 1, 256, 128, 0),
    ("an input read twice is read once", "(float[4, 8] x) => (float[4, 8] z) { z = Mul (x, x) }", 1, 128, 128, 0),
    ("low", "(float16[4, 8] x) => (float16[4, 8] z) { z = Relu (x) }", 1, 64, 64, 0),
    ("cast", "(float16[4, 8] x) => (float[4, 8] z) { z = Cast <to = 1> (x) }", 1, 64, 128, 0),
    ("bfloat16", "(bfloat16[4, 8] x) => (bfloat16[4, 8] z) { z = Relu (x) }", 1, 64, 64, 0),
    ("reshape to an output", "(float[4, 8] x, int64[1] s) => (float[32] z) { z = Reshape (x, s) }", 0, 128, 128, 0),
    ("squeeze to an output", "(float[4, 1] x, int64[1] s) => (float[4] z) { z = Squeeze (x, s) }", 0, 16, 16, 0),
    ("matmul", "(float[2, 4, 8] x, float[8, 3] w) => (float[2, 4, 3] z) { z = MatMul (x, w) }", 1, 352, 96, 384),
    (
        "transposed",
        "(float[8, 4] x, float[8, 3] w) => (float[4, 3] z) { z = com.microsoft.FusedMatMul <transA = 1> (x, w) }",
        1,
        224,
        48,
        192,
    ),
    (
        "Gemm with a bias",
        "(float[4, 8] x, float[8, 3] w, float[3] b) => (float[4, 3] z) { z = Gemm (x, w, b) }",
        2,
        236,
        48,
        192,
    ),
    (
        "Gemm on a sum",
        "(float[4, 8] x, float[8, 3] w, float[4, 3] b) => (float[4, 3] z) { z = Gemm (x, w, b) }",
        1,
        272,
        48,
        192,
    ),
    (
        "convolution",
        "(float[2, 3, 8, 8] x, float[5, 3, 3, 3] w) => (float[2, 5, 6, 6] z) { z = Conv (x, w) }",
        1,
        1536 + 540,
        1440,
        2 * 360 * 27,
    ),
    (
        "convolution with a bias",
        "(float[2, 3, 8, 8] x, float[5, 3, 3, 3] w, float[5] b) => (float[2, 5, 6, 6] z) { z = Conv (x, w, b) }",
        2,
        1536 + 540 + 20,
        1440,
        2 * 360 * 27,
    ),
    (
        "transposed convolution",
        "(float[2, 5, 6, 6] x, float[5, 3, 3, 3] w) => (float[2, 3, 8, 8] z) { z = ConvTranspose (x, w) }",
        1,
        1440 + 540,
        1536,
        2 * 360 * 27,
    ),
    ("gather", "(float[100, 8] x, int64[4] i) => (float[4, 8] z) { z = Gather (x, i) }", 1, 160, 128, 0),
    (
        "scatter into an input",
        "(float[9, 8] x, int64[4, 1] i, float[4, 8] u) => (float[9, 8] z) { z = ScatterND (x, i, u) }",
        1,
        288 + 32 + 128,
        288,
        0,
    ),
    (
        "scatter in place",
        "(float[9, 8] x, int64[4, 1] i, float[4, 8] u) => (float[9, 8] z) { y = Neg (x) z = ScatterND (y, i, u) }",
        1,
        32 + 128,
        128,
        0,
    ),
    (
        "scatter over what it waits for",
        """(float[9, 1] x, int64[9, 2] i, float[1] w) => (float[9, 1] z)
        { y = Neg (x) m = MatMul (y, w) z = ScatterND (y, i, m) }""",
        1,
        144 + 36,
        36,
        0,
    ),
    (
        "scatter beside another reader",
        """(float[9, 1] x, int64[9, 2] i, float[9] u) => (float[9, 1] z, float[9, 1] t)
        { y = Neg (x) t = Neg (y) z = ScatterND (y, i, u) }""",
        1,
        36 + 144 + 36,
        36,
        0,
    ),
    ("transpose", "(float[4, 8] x) => (float[8, 4] z) { z = Transpose (x) }", 1, 128, 128, 0),
    (
        "nothing moved",
        "(float[1, 4, 8] x) => (float[4, 1, 8] z) { z = Transpose <perm = [1, 0, 2]> (x) }",
        0,
        128,
        128,
        0,
    ),
    ("mean of all", "(float[4, 8] x) => (float z) { z = ReduceMean <keepdims = 0> (x) }", 2, 128, 4, 0),
    (
        "mean of the middle",
        "(float[4, 8, 2] x) => (float[1, 8, 1] z) <int64[2] a = {0, 2}> { z = ReduceMean (x, a) }",
        1,
        256 + 16,
        32,
        0,
    ),
    (
        "mean of rows",
        "(float[4, 8] x) => (float[4, 1] z) <int64[1] a = {-1}> { z = ReduceMean (x, a) }",
        2,
        128 + 8,
        16,
        0,
    ),
    (
        "a sum of ten",
        f"({TEN_INPUTS}) => (float[4] z) {{ z = Sum ({TEN}) }}",
        2,
        160,
        16,
        0,
    ),
    ("a sum of one", "(float[4] x) => (float[4] z) { z = Sum (x) }", 0, 16, 16, 0),
    (
        "scatter of elements",
        "(float[9] x, int64[4] i, float[4] u) => (float[9] z) { y = Neg (x) z = ScatterElements (y, i, u) }",
        1,
        36 + 32 + 16,
        36,
        0,
    ),
    ("filled", "() => (float[4] z) <int64[1] s = {4}> { z = ConstantOfShape (s) }", 1, 0, 16, 0),
]


@pytest.mark.parametrize(
    ("text", "launches", "read", "written", "flops"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_node_s_cost(text, launches, read, written, flops):
    cost = one(f"g {text}")
    assert (cost.launches, cost.read, cost.written, cost.flops) == (launches, read, written, flops)
    assert cost.bytes == read + written


STFT = "g (float[2, 64, 1] x, float[8] w) => (float[2, 15, 5, 2] z) <int64 s = {{4}}> {{ {} }}"


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("z = STFT (x, s, w)", 0, 0),
        ("h = Cast <to = 10> (x) v = Cast <to = 10> (w) y = STFT (h, s, v) z = Cast <to = 1> (y)", 136 * 2 + 300 * 4,
         136 * 4 + 300 * 2),
    ],
    ids=["float32", "float16"],
)  # fmt: skip
def test_the_cpu_casts_around_kernels_that_it_has_in_float32_alone(text, read, written):
    [cost] = [cost for cost in traffic(model_of(STFT.format(text))) if cost.node.op_type == "STFT"]
    assert (cost.launches, cost.read, cost.written) == (0, read, written)


@pytest.mark.parametrize(("inputs", "launches"), [("x, w", 1), ("x, w, b", 2)])
def test_the_bias_of_a_convolution_is_a_launch_of_its_own(inputs, launches):
    ends = "g (float[2, 3, 8, 8] x, float[5, 3, 3, 3] w, float[5] b) => (float[2, 5, 6, 6] z)"
    assert traffic(model_of(f"{ends} {{ z = Conv ({inputs}) }}"))[0].launches == launches


ATTENTION = """g ({t}[2, 16, 32] x, {t}[32, 96] w, {t}[96] b) => ({t}[2, 16, 32] z)
{{ z = com.microsoft.Attention <num_heads = 4> (x, w, b) }}"""


def test_fused_attention_keeps_its_scores_to_itself_in_low_formats_alone():
    low, wide = one(ATTENTION.format(t="float16")), one(ATTENTION.format(t="float"))
    assert (low.launches, wide.launches) == (3, 6)
    assert low.flops == wide.flops == 2 * 32 * 32 * 96 + 4 * 2 * 16 * 16 * 32
    assert low.rate == "float16"
    scores = 2 * 4 * 2 * 4 * 16 * 16
    assert wide.read == 2 * low.read + 4 * 2 * 16 * 32 + scores


# layout, mask, keys and head size -> launches, bytes kept besides operands and result: as stand-ins count them
STANDARD_ATTENTION = {
    ("rows", "", 16, 8): (1, 0),
    ("rows", "float16", 16, 8): (2, 0),
    ("rows", "bool", 16, 8): (3, 0),
    ("heads", "", 16, 8): (3, 2 * 2048),  # queries and the result are transposed
    ("heads", "float16", 16, 8): (4, 2 * 2048),
    ("heads", "bool", 16, 8): (5, 2 * 2048),
    ("rows", "float16", 18, 8): (7, 2 * 2048 + 2 * 2304 + 2 * 4 * 2 * 4 * 16 * 18),
    ("rows", "", 16, 4): (7, 4 * 1024 + 2 * 4 * 2 * 4 * 16 * 16),
    ("heads", "float16", 18, 8): (3, 2 * 4 * 2 * 4 * 16 * 18),
    ("heads", "bool", 18, 8): (4, 2 * 4 * 2 * 4 * 16 * 18),
}


@pytest.mark.parametrize(("layout", "mask", "keys", "size"), STANDARD_ATTENTION)
def test_attention_is_one_kernel_by_rows_where_a_fused_kernel_takes_it(layout, mask, keys, size):
    sides = {length: f"2,{length},{4 * size}" if layout == "rows" else f"2,4,{length},{size}" for length in (16, keys)}
    inputs = [f"float16[{sides[length]}] {name}" for length, name in ((16, "q"), (keys, "k"), (keys, "v"))]
    inputs += [f"{mask}[16,{keys}] m"] * bool(mask)
    heads = "<q_num_heads = 4, kv_num_heads = 4>" if layout == "rows" else ""
    text = (
        f"({', '.join(inputs)}) => (float16[{sides[16]}] z) {{ z = Attention {heads} (q, k, v{', m' * bool(mask)}) }}"
    )
    cost = one(f"g {text}")
    launches, besides = STANDARD_ATTENTION[layout, mask, keys, size]
    operands = 2 * 2 * 4 * size * (16 + 2 * keys) + (2 if mask == "float16" else 1) * 16 * keys * bool(mask)
    assert cost.launches == launches
    assert (cost.read - operands, cost.written - 2 * 2 * 4 * size * 16) == (besides, besides)


def test_open_dimensions_take_the_given_sizes_and_those_of_made_up_inputs_otherwise():
    text = "g (float[N, M, 8] x) => (float[N, M, 8] z) { y = Neg (x) z = Relu (y) }"
    assert one(text, N=3, M=2).bytes == 2 * 3 * 2 * 8 * 4
    assert one(text, N=3).bytes == 2 * 3 * 32 * 8 * 4
    assert open_dims(model_of(text)) == {"N": 1, "M": 32}
    with pytest.raises(OptionError, match="no input has an open dimension 'K'; open dimensions with a name: M, N"):
        one(text, K=3)


def test_shapes_that_a_file_has_are_kept_where_onnx_infers_none():
    model = model_of("""g (float[4, 8] x) => (float z)
    <float[4, 8] y> { y = com.microsoft.QuickGelu (x) t = Neg (y) z = ReduceMax <keepdims = 0> (t) }""")
    assert [cost.bytes for cost in traffic(model)] == [256, 256, 132]


def test_what_computes_sizes_from_sizes_stays_on_the_host():
    text = """g (float[N, 8] x) => (float[N, 8] z) <int64[1] one = {1}>
    { s = Shape (x) t = Mul (s, one) y = Reshape (x, t) z = Relu (y) }"""
    costs = traffic(model_of(text), {"N": 4})
    assert [cost.launches for cost in costs] == [0, 0, 0, 1]
    assert [cost.bytes for cost in costs] == [0, 0, 0, 256]


def test_nodes_of_bodies_count():
    text = """g (bool c, float[4] x) => (float[4] z)
    { z = If (c) <then_branch = a () => (float[4] p) { p = Neg (x) },
                  else_branch = b () => (float[4] q) { q = Abs (x) }> }"""
    assert sorted((cost.node.op_type, cost.launches) for cost in traffic(model_of(text))) == [
        ("Abs", 1),
        ("If", 0),
        ("Neg", 1),
    ]


PRODUCT = "g ({t}[4096, 4096] x, {t}[4096, 4096] y) => ({t}[4096, 4096] z) {{ z = MatMul (x, y) }}"


def test_float32_is_multiplied_in_tf32_unless_told_otherwise():
    model = model_of(PRODUCT.format(t="float"))
    fast, exact = (predict(model, DEVICES["H100"], tf32=tf32).busy_milliseconds for tf32 in (True, False))
    assert 4 < exact / fast < 7.4  # as the rates of the data sheet are
    assert fast == pytest.approx(1e3 * 2 * 4096**3 / 235e12, rel=0.02)


def test_low_products_are_faster_and_bfloat16_is_not_on_a_t4():
    times = {
        (t, name): predict(model_of(PRODUCT.format(t=t)), DEVICES[name]).busy_milliseconds
        for t in ("float", "float16", "bfloat16")
        for name in ("H100", "T4")
    }
    assert times["float", "H100"] > 2 * times["float16", "H100"]
    assert times["bfloat16", "H100"] == times["float16", "H100"]
    assert times["bfloat16", "T4"] == times["float", "T4"] > times["float16", "T4"]


def test_a_device_without_prices_of_its_own_is_slower_by_its_memory():
    model = model_of("g (float[1048576, 64] x) => (float[1048576, 64] z) { z = Relu (x) }")
    h100, a100 = (predict(model, DEVICES[name]) for name in ("H100", "A100"))
    assert a100.busy_milliseconds == pytest.approx(h100.busy_milliseconds * 3350 / 2039, rel=0.02)
    assert (h100.is_scaled, a100.is_scaled) == (False, True)
    assert h100.basis == "prices of H100, ONNX Runtime 1.31.1; 0% of it by a rule"
    assert a100.basis == "prices of H100, ONNX Runtime 1.31.1, scaled by bandwidth and rate; 0% of it by a rule"


def test_what_has_no_price_costs_its_bytes_and_is_said_to():
    model = model_of("g (float[1048576, 64] x) => (float[1048576, 64] z) { y = Relu (x) z = Xyz (y) }")
    prediction = predict(model, DEVICES["H100"])
    ruled = 1e3 * 2 * 2**28 / 1.5e12
    assert prediction.unmeasured == pytest.approx(ruled / prediction.busy_milliseconds)
    small = predict(model_of("g (float[4] x) => (float[4] z) { z = Xyz (x) }"), DEVICES["H100"])
    assert (small.busy_milliseconds, small.unmeasured) == (pytest.approx(2.5e-3), 1.0)


@pytest.mark.parametrize(
    ("kernels", "seconds", "replayed"),
    [
        ([], 0, 5),
        ([(2, 1)] * 3, 17, 11),  # the host is slower: the last is asked for after 15, and takes 2
        ([(20, 1)] * 3, 65, 65),  # the device is: the host runs ahead
        ([(20, 1), (2, 1), (2, 1), (2, 1)], 31, 31),  # a long kernel hides the calls behind it
        ([(2, 4)], 22, 7),
        ([(20, 1, True), (2, 1), (2, 1)], 37, 29),  # it waits for the first, and asks for the others then
    ],
)
def test_the_host_runs_ahead_of_the_device(kernels, seconds, replayed):
    launched = [Kernel(*kernel) for kernel in kernels]
    assert time_of(launched, 5) == seconds
    assert time_of(launched, 5, cuda_graph=True) == replayed


def test_a_node_s_share_is_its_longer_side():
    h100 = DEVICES["H100"]
    assert node_seconds(one("g (float[4] x) => (float[4] z) { z = Relu (x) }"), h100) == h100.launch
    moved, _ = traffic(model_of("g (float[4] x, int64[1] s) => (float[2, 2] z) { y = Reshape (x, s) z = Relu (y) }"))
    assert node_seconds(moved, h100) == moved.bytes == 0
    large = one("g (float[1048576, 64] x) => (float[1048576, 64] z) { z = Relu (x) }")
    assert node_seconds(large, h100) == pytest.approx(2.45e-12 * 2**26, rel=0.03)


def test_devices_are_found_by_name():
    assert find_device("rtx 4090") is DEVICES["RTX4090"]
    with pytest.raises(OptionError, match="expected one of H100, H200, A100, L4, T4, RTX4090"):
        find_device("V100")


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_rows_of_devices_are_of_the_right_order(device):
    assert 0.2e12 < device.bandwidth < 6e12
    assert 10e9 < device.memory < 200e9
    assert device.rates["float32"] <= device.rates["tf32"] <= device.rates["float16"]
    assert math.isclose(device.launch, 7e-6)


@pytest.mark.parametrize(
    "read",
    [
        "x: seq(float[4])",
        "x: seq(int64[N])",
        "x: optional(seq(float[4]))",
        "x: optional(float[4])",
        "x: seq(string[N])",
    ],
)
@pytest.mark.parametrize("operator", ["MatMul (x, w)", "Add (x, w)", "Gemm (x, w)", "Softmax (x)"])
def test_a_node_that_reads_no_tensor_where_one_is_due_costs_what_is_guessed(read, operator):
    """A model that ONNX Runtime refuses; whoever draws its report is told so, and gets no other exception."""
    name, kind = read.split(": ")
    text = f"g ({kind} {name}, float[4, 4] w) => (float[4, 4] z) {{ a = Relu (w) z = {operator} }}"
    assert len(traffic(model_of(text), {})) == 2
