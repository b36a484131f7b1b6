"""Rescaling from end to end, and the parts of a program that it must leave as they are."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import amp_transpiler as amp
from amp_transpiler.cli import main
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.report.as_json import report_as_dict
from amp_transpiler.report.recipe import Recipe
from amp_transpiler.rescale.choose import choose_scalings
from amp_transpiler.rescale.system import system_of
from tests.support import parse, run

SIZE, INNER, TOKENS, LAYERS = 64, 128, 16, 3
RNG = np.random.default_rng(0)
SAMPLE = {"x": RNG.normal(size=(1, TOKENS, SIZE)).astype(np.float32)}


def stream(largest, epsilon=1e-6):
    """Layers of x + relu(norm(x) W1) W2, whose W2 makes x as large as wanted, and a norm at the end."""
    random = np.random.default_rng(1)
    weights, nodes = {"two": np.float32(2.0), "enter": random.normal(0, SIZE**-0.5, (SIZE, SIZE))}, []
    nodes.append("r0 = MatMul(x, enter)")
    for layer in range(LAYERS):
        weights[f"eps{layer}"] = epsilon
        weights[f"up{layer}"] = random.normal(0, SIZE**-0.5, (SIZE, INNER))
        weights[f"down{layer}"] = random.normal(0, INNER**-0.5, (INNER, SIZE)) * largest / 8
        nodes += [
            f"p{layer} = Pow(r{layer}, two)",
            f"m{layer} = ReduceMean<axes = [-1], keepdims = 1>(p{layer})",
            f"a{layer} = Add(m{layer}, eps{layer})",
            f"q{layer} = Sqrt(a{layer})",
            f"n{layer} = Div(r{layer}, q{layer})",
            f"u{layer} = MatMul(n{layer}, up{layer})",
            f"v{layer} = Relu(u{layer})",
            f"o{layer} = MatMul(v{layer}, down{layer})",
            f"r{layer + 1} = Add(r{layer}, o{layer})",
        ]
    weights["leave"] = random.normal(0, SIZE**-0.5, (SIZE, SIZE))
    nodes += [
        f"pf = Pow(r{LAYERS}, two)",
        "mf = ReduceMean<axes = [-1], keepdims = 1>(pf)",
        "af = Add(mf, eps0)",
        "qf = Sqrt(af)",
        f"nf = Div(r{LAYERS}, qf)",
        "y = MatMul(nf, leave)",
    ]
    shape = f"float[1, {TOKENS}, {SIZE}]"
    body = " ".join(f"[{node.split(' = ')[0]}] {node}" for node in nodes)
    weights = {name: np.asarray(values, np.float32) for name, values in weights.items()}
    return parse(f"({shape} x) => ({shape} y) {{ {body} }}", opset=17, **weights)


def transpiled(model, **options):
    return amp.transpile(model, None, inputs=SAMPLE, prefer="size", cache=False, **options)


def low_products(report):
    return [row.name for row in report.decisions if row.op == "MatMul" and row.precision == "float16"]


@pytest.fixture(scope="module")
def large():
    return stream(3e5)


@pytest.fixture(scope="module")
def rescaled(large):
    return transpiled(large)


def test_a_stream_beyond_float16_becomes_float16(large, rescaled):
    without = transpiled(large, rescale="no")
    assert len(low_products(rescaled)) == 2 * LAYERS + 2
    assert len(low_products(without)) < 2 * LAYERS
    assert without.rescaled == {}
    assert rescaled.weight_bytes[1] < 0.75 * without.weight_bytes[1]
    errors = [max(row.relative for row in report.outputs.values()) for report in (rescaled, without)]
    assert errors[0] < 2 * errors[1]


def test_the_report_names_constants_and_powers(rescaled):
    powers = rescaled.rescaled
    shift = powers["enter"]
    assert shift < 0
    assert powers == {
        "enter": shift,
        **{f"down{layer}": shift for layer in range(LAYERS)},
        **{f"eps{layer}": 2 * shift for layer in range(1, LAYERS)},
        "eps0 of a0": 2 * shift,
        "eps0 of af": 2 * shift,
    }
    (note,) = [note for note in rescaled.notes if "rescaled" in note]
    assert "equal to the bit" in note
    assert "--rescale no" in note
    assert report_as_dict(rescaled)["rescaled"] == powers


def test_the_result_computes_what_the_source_does(large, rescaled):
    expected, low = run(large, SAMPLE)["y"], run(rescaled.program, SAMPLE)["y"]
    assert np.linalg.norm(low - expected) < 0.01 * np.linalg.norm(expected)


def test_a_recipe_replays_it(large, rescaled, tmp_path):
    rescaled.save_recipe(tmp_path / "r.toml")
    again = transpiled(large, recipe=tmp_path / "r.toml")
    assert again.rescaled == rescaled.rescaled
    assert low_products(again) == low_products(rescaled)
    assert again.warnings == rescaled.warnings
    assert Recipe.of(again).options["rescale"] == rescaled.rescaled


def test_a_recipe_of_another_model_is_not_replayed_in_part(rescaled, tmp_path):
    rescaled.save_recipe(tmp_path / "r.toml")
    other = stream(1.0)
    for tensor in other.graph.initializer:
        if tensor.name == "enter":
            tensor.name = "entrance"
    other.graph.node[0].input[1] = "entrance"
    report = transpiled(other, recipe=tmp_path / "r.toml")
    assert report.rescaled == {}
    assert any("not all constants" in note for note in report.notes)


def test_what_fits_stays_as_it_is():
    assert transpiled(stream(8.0)).rescaled == {}


def test_an_epsilon_that_would_underflow_keeps_its_program():
    report = transpiled(stream(3e5, epsilon=3e-38))
    assert report.rescaled == {}


def test_bfloat16_has_the_range_of_float32(large):
    assert transpiled(large, dtype="bfloat16").rescaled == {}


def test_other_levels_rescale_nothing(large):
    with pytest.raises(OptionError, match="level auto only"):
        transpiled(large, level="O2", rescale="no")


@pytest.mark.parametrize("choice", ["yes", 5, {"x": 1.5}, {"x": True}])
def test_no_other_choice_is_taken(choice, large):
    with pytest.raises(OptionError, match="rescale is"):
        transpiled(large, rescale=choice)


def test_the_command_takes_two_words(tmp_path, capsys):
    assert main([str(tmp_path / "m.onnx"), "--rescale", "maybe"]) == 2
    assert "'maybe' is unknown: expected auto or no" in capsys.readouterr().err


# ---- what is tied, and what is not ----


def typed(proto):
    model = ir.from_proto(proto)
    propagate_types(model)
    return model


def scaled(proto, seen, cut=True):
    """Return the scalings of a program all of whose nodes may be low, for values with these largest magnitudes."""
    model = typed(proto)
    forms = {
        node: LowForm(frozenset(range(len(node.inputs))), frozenset(range(len(node.outputs)))) for node in model.graph
    }
    ranges = {name: TensorRange(largest, largest / 1e3) for name, largest in seen.items()}
    chosen = choose_scalings(model, forms, ranges, FLOAT16, 1.0)
    assert cut or not chosen.inserted
    return chosen.exponents


W = {"w": np.eye(4, dtype=np.float32) * 1e3, "v": np.eye(4, dtype=np.float32)}
RELU = "(float[2,4] x) => (float[2,4] y) {{ a = MatMul(x, w) b = {} y = MatMul({}, v) }}"


def test_a_chain_is_scaled_down_and_up_again():
    assert scaled(parse(RELU.format("Relu(a)", "b"), **W), {"a": 2e5, "b": 2e5}) == {"w": -2, "v": 2}


def test_a_border_reads_what_it_did():
    exponents = scaled(parse(RELU.format("Tanh(a)", "b"), **W), {"a": 2e5, "b": 1.0})
    assert exponents == {"w": -2, "new product of a": -2}


def test_a_body_sees_what_it_captures_unscaled():
    body = "If (c) <then_branch = g () => (float[2,4] t) { t = Relu(a) }, else_branch = h () => (float[2,4] e) "
    graph = (
        "(bool c, float[2,4] x) => (float[2,4] y, float[2,4] z) { a = MatMul(x, w) z = "
        + body
        + "{ e = Neg(a) }> y = MatMul(a, v) }"
    )
    assert scaled(parse(graph.replace("If (c) <", "If <").replace("}> y", "}> (c) y"), **W), {"a": 2e5}) == {}


def test_what_the_caller_fetches_is_scaled_back_where_that_saves_more():
    """The sum of two products leaves the range, and is an output as well as an input of products."""
    graph = "(float[2,4] x) => (float[2,4] s) { a = MatMul(x, w) b = MatMul(x, v) s = Add(a, b) }"
    exponents = scaled(parse(graph, **W), {"a": 2e5, "b": 2e5, "s": 2e5})
    assert exponents == {"w": -2, "v": -2, "new product of s": -2}


def test_a_large_constant_that_is_shared_is_scaled_as_one():
    wide = np.full((256, 256), 1.0, np.float32)
    graph = (
        "(float[2,256] x) => (float[2,256] y, float[2,256] z) "
        "{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) c = MatMul(x, w) d = Relu(c) z = MatMul(d, v) }"
    )
    exponents = scaled(parse(graph, w=wide, v=wide * 2), {"a": 2e5, "b": 2e5})
    assert exponents == {"w": -2, "v": 2}


def test_a_small_constant_that_is_shared_is_copied():
    graph = (
        "(float[2,4] x) => (float[2,4] y, float[2,4] z) "
        "{ a = Mul(x, w) b = Relu(a) y = MatMul(b, v) c = Mul(x, w) z = Tanh(c) }"
    )
    exponents = scaled(parse(graph, w=np.float32(3.0), v=W["v"]), {"a": 2e5, "b": 2e5})
    assert {name.partition(" of ")[0] for name in exponents} == {"w", "v"}
    assert "w" not in exponents


def test_quantized_neighbours_take_it_with_their_scales():
    graph = (
        "(float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) q = QuantizeLinear(a, s, o) "
        "b = DequantizeLinear(q, t, o) y = MatMul(b, v) }"
    )
    model = parse(graph, s=np.float32(1e3), t=np.float32(1e3), o=np.uint8(7), **W)
    assert scaled(model, {"a": 2e5, "b": 2e5}) == {"w": -2, "s": -2, "t": -2, "v": 2}


def test_square_roots_halve():
    graph = "(float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) b = Sqrt(a) y = MatMul(b, v) }"
    assert scaled(parse(graph, **W), {"a": 2e5}) == {"w": -2, "v": 1}
    assert scaled(parse(graph, **W), {"a": 1e5}) == {"w": -2, "v": 1}


def test_five_thousand_nodes_take_about_a_second():
    nodes, weights = ["r0 = MatMul(x, w0)"], {"w0": W["w"]}
    for layer in range(714):
        weights |= {f"e{layer}": np.float32(1e-3), f"u{layer}": W["v"], f"d{layer}": W["w"]}
        nodes += [
            f"s{layer} = Mul(r{layer}, r{layer})",
            f"t{layer} = Add(s{layer}, e{layer})",
            f"q{layer} = Sqrt(t{layer})",
            f"n{layer} = Div(r{layer}, q{layer})",
            f"v{layer} = MatMul(n{layer}, u{layer})",
            f"o{layer} = MatMul(v{layer}, d{layer})",
            f"r{layer + 1} = Add(r{layer}, o{layer})",
        ]
    nodes.append("y = MatMul(n713, w0)")
    proto = parse("(float[2,4] x) => (float[2,4] y) { " + " ".join(nodes) + " }", **weights)
    model = typed(proto)
    every = {
        node: LowForm(frozenset(range(len(node.inputs))), frozenset(range(len(node.outputs)))) for node in model.graph
    }
    ranges = {str(node.outputs[0].name): TensorRange(4e5, 1.0) for node in model.graph if node.op_type == "Add"}
    seconds = []
    for _ in range(2):
        start = time.process_time()
        assert choose_scalings(model, every, ranges, FLOAT16, 1.0).freed
        seconds.append(time.process_time() - start)
    assert min(seconds) < 4.0  # about 1.5 on a processor of its own


def test_few_exponents_are_free_in_a_chain():
    assert len(system_of(typed(parse(RELU.format("Relu(a)", "b"), **W))).free) == 1


def test_a_training_step_is_left_as_it_is():
    gradient = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [gradient],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(W["w"] * 1e3, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    info = model.training_info.add()
    info.algorithm.node.append(helper.make_node("Mul", ["w", "half"], ["w2"]))
    info.algorithm.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    info.algorithm.name = "a"
    binding = info.update_binding.add()
    binding.key, binding.value = "w", "w2"
    info.algorithm.output.append(helper.make_tensor_value_info("w2", onnx.TensorProto.FLOAT, [4, 4]))
    report = amp.transpile(model, None, inputs={"x": np.ones((2, 4), np.float32)}, cache=False)
    assert report.rescaled == {}
