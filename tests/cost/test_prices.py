"""Prices of nodes and casts of a float32 program."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.cost import DEVICES, pays_from, predict, prices
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.targets.price_list import price_list

H100, T4 = DEVICES["H100"], DEVICES["T4"]
HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'


def model_of(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def priced(text: str, low=FLOAT16, device=H100, **dims: int):
    """Return the nodes by the name of their first output, and the prices."""
    model = model_of(text)
    return {node.outputs[0].name: node for node in model.graph}, prices(model, low, device, dims)


GAP = price_list().gap


def charged(kernel: str, form: str, elements: int) -> float:
    """What a kernel without steps takes, and the gap behind it."""
    row = price_list().rows[kernel, form]
    return row.start + row.element * elements + GAP


LARGE = "g (float[4096, 4096] x, float[4096, 4096] w) => (float[4096, 4096] z) { y = MatMul (x, w) z = Relu (y) }"


def test_a_product_is_bound_by_computing_and_an_activation_by_memory():
    nodes, seconds_of = priced(LARGE)
    assert seconds_of.high[nodes["y"]] == pytest.approx(2 * 4096**3 / 235e12, rel=0.03)
    assert seconds_of.low[nodes["y"]] == pytest.approx(2 * 4096**3 / 720e12, rel=0.05)
    assert seconds_of.high[nodes["z"]] == pytest.approx(charged("Relu", "float32", 4096**2))
    assert seconds_of.low[nodes["z"]] == pytest.approx(charged("Relu", "float16", 4096**2))


def test_a_cast_has_a_price_and_is_a_launch_at_least():
    nodes, seconds_of = priced(LARGE)
    assert seconds_of.cast(nodes["y"].outputs[0]) == pytest.approx(charged("Cast to 16 bits", "float16", 4096**2))
    nodes, seconds_of = priced("g (float[4] x) => (float[4] z) { z = Relu (x) }")
    assert seconds_of.cast(nodes["z"].outputs[0]) == H100.launch


def test_small_nodes_cost_a_launch_in_either_precision():
    nodes, seconds_of = priced("g (float[4, 4] x, float[4, 4] w) => (float[4, 4] z) { z = MatMul (x, w) }")
    assert seconds_of.high[nodes["z"]] == seconds_of.low[nodes["z"]] == H100.launch


@pytest.mark.parametrize(
    ("body", "in_low"), {"z = Reshape (x, s)": 0.0, "y = Reshape (x, s) z = Relu (y)": 1.0}.items()
)
def test_a_reshape_that_is_an_output_is_copied_unless_a_cast_reads_it(body, in_low):
    nodes, seconds_of = priced(f"g (float[4, 4] x) => (float[16] z) <int64[1] s = {{16}}> {{ {body} }}")
    assert seconds_of.high[nodes["z"]] == H100.launch
    assert seconds_of.low[nodes["z"]] == in_low * H100.launch
    assert seconds_of.kernel(nodes["z"], is_low=True).calls == in_low


def test_bfloat16_buys_nothing_in_products_on_a_t4():
    nodes, seconds_of = priced(LARGE, BFLOAT16, T4)
    assert seconds_of.low[nodes["y"]] == pytest.approx(seconds_of.high[nodes["y"]])
    nodes, fp16 = priced(LARGE, FLOAT16, T4)
    assert fp16.low[nodes["y"]] < seconds_of.low[next(iter(seconds_of.low))] / 4


FREE = """g (float[N, 8] x) => (float[N, 8] z)
<float[2, 2] w = {1, 2, 3, 4}, int64[1] one = {1}> {
    constants = Neg (w) both = Mul (constants, w)
    s = Shape (x) sizes = Mul (s, one) y = Reshape (x, sizes) z = Relu (y) }"""


def test_constants_sizes_and_views_are_free():
    nodes, seconds_of = priced(FREE)
    for name in ("constants", "both", "s", "sizes", "y"):
        assert (name, seconds_of.low[nodes[name]], seconds_of.high[nodes[name]]) == (name, 0, 0)
    assert seconds_of.cast(nodes["constants"].inputs[0]) == seconds_of.cast(nodes["both"].outputs[0]) == 0
    assert seconds_of.high[nodes["z"]] > 0


def test_weights_count_as_traffic_of_the_node_that_reads_them():
    text = "g (float[1, 8192] x, float[8192, 8192] w) => (float[1, 8192] z) { z = MatMul (x, w) }"
    nodes, seconds_of = priced(text)
    assert seconds_of.high[nodes["z"]] == pytest.approx(charged("Thin product", "tf32", 8192**2), rel=1e-3)
    assert seconds_of.low[nodes["z"]] == pytest.approx(charged("Thin product", "float16", 8192**2), rel=1e-3)


GELU = """g (float[1024, 4096] x) => (float[1024, 4096] z)
<float r = {1.4142135}, float one = {1}, float half = {0.5}>
{ s = Div (x, r) e = Erf (s) a = Add (e, one) m = Mul (x, a) z = Mul (m, half) }"""


def test_what_is_fused_has_one_price():
    nodes, seconds_of = priced(GELU)
    assert seconds_of.fused == (frozenset(nodes.values()),)
    assert [seconds_of.costs_high[nodes[name]].launches for name in "seamz"] == [0, 0, 0, 0, 1]
    assert seconds_of.high[nodes["z"]] == pytest.approx(charged("Gelu", "float32", 1024 * 4096))
    assert sum(seconds_of.high.values()) == seconds_of.high[nodes["z"]]


def test_groups_that_are_given_count_as_one():
    text = "g (float[1024, 4096] x) => (float[1024, 4096] z) { y = Neg (x) z = Exp (y) }"
    model = model_of(text)
    y, z = model.graph
    alone, both = prices(model, FLOAT16, H100), prices(model, FLOAT16, H100, together=[{y, z}])
    assert alone.fused == ()
    assert both.fused == (frozenset((y, z)),)
    assert (both.high[y], both.high[z]) == (0, alone.high[z])


def test_prices_follow_the_sizes_of_open_dimensions():
    text = "g (float[batch, 1048576] x) => (float[batch, 1048576] z) { z = Relu (x) }"
    nodes, eight = priced(text, batch=8)
    assert eight.high[nodes["z"]] == pytest.approx(charged("Relu", "float32", 8 * 2**20))


def dense(kind: str, width: int = 256) -> ir.Model:
    """Sixteen products and activations: low, with casts around them and a launch more."""
    dtype, first, last = {"low": ("float16", "Cast <to = 10>", "Cast <to = 1>"), "high": ("float", "Neg", "Neg")}[kind]
    layers = " ".join(f"m{i} = MatMul (v{i}, w) v{i + 1} = Relu (m{i})" for i in range(16))
    inputs = f"float[batch, {width}] x, {dtype}[{width}, {width}] w"
    spare = "s = Relu (v0)" if kind == "low" else ""
    return model_of(
        f"g ({inputs}) => (float[batch, {width}] z) {{ v0 = {first} (x) {spare} {layers} z = {last} (v16) }}"
    )


def test_it_pays_from_a_size_on():
    low, high = dense("low"), dense("high")
    size = pays_from(low, high, H100, "batch")
    assert size is not None
    assert 100 < size < 65536
    for batch, faster in ((size // 2, False), (size - 1, False), (size, True), (2 * size, True)):
        times = [predict(model, H100, {"batch": batch}, fuse=True).milliseconds for model in (low, high)]
        assert (times[0] < times[1]) is faster


def test_it_pays_from_a_small_size_on_though_products_are_thin_below():
    """A curve through sizes from 32 on says that one row pays: thin products take little more in float32."""
    low, high = dense("low", 2048), dense("high", 2048)
    size = pays_from(low, high, H100, "batch")
    assert size is not None
    assert 1 < size <= 32
    for batch, faster in ((size - 1, False), (size, True)):
        times = [predict(model, H100, {"batch": batch}, fuse=True).milliseconds for model in (low, high)]
        assert (times[0] < times[1]) is faster


def test_it_never_pays_where_the_low_model_only_casts_more():
    low = "g (float[batch, 8] x) => (float[batch, 8] z) { y = Cast <to = 10> (x) t = Relu (y) z = Cast <to = 1> (t) }"
    high = "g (float[batch, 8] x) => (float[batch, 8] z) { z = Relu (x) }"
    assert pays_from(model_of(low), model_of(high), H100, "batch") is None
