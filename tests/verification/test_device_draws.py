"""Conversions judged by what a device may make of them: rules of its kernels, draws of their noise, the worst one."""

import dataclasses

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.files.loading import load
from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import DeviceDraws
from amp_transpiler.targets.arithmetic import arithmetic_of
from amp_transpiler.verification import amplifier
from amp_transpiler.verification.accuracy import make_reference
from amp_transpiler.verification.amplifier import amplifier_of
from amp_transpiler.verification.device_draws import DRAWS, open_device_runs
from amp_transpiler.verification.judge import Judge
from tests.support import array, parse

H100 = arithmetic_of("H100", "1.31")
TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}


def pair(body, dtype, **initializers):
    """Return a float32 model of a body from x to y, and the same with every float in a low format."""
    wide = parse(f"(float[4,64] x) => (float[4,?] y) {{ {body} }}", **initializers)
    text = f"(float[4,64] x) => (float[4,?] y) {{ x_ = Cast <to = {TYPES[dtype]}> (x) {low_body(body)} "
    low = parse(text + "y = Cast <to = 1> (y_) }")
    for name, value in initializers.items():
        data_type = TYPES[dtype] if value.dtype == np.float32 else onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        low.graph.initializer.append(onnx.helper.make_tensor(name, data_type, value.shape, value.reshape(-1)))
    return load(wide), load(low)


def low_body(body):
    """Return a body with other names for its input and output."""
    words = body.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    return " ".join({"x": "x_", "y": "y_"}.get(word, word) for word in words)


def judged(body, dtype, x, tolerance=0.02, **initializers):
    source, low = pair(body, dtype, **initializers)
    reference = make_reference(source, source, [{"x": each} for each in np.atleast_3d(x)] if x.ndim == 3 else {"x": x})
    judge = Judge(reference, Limits(tolerance=tolerance), None, H100)
    return judge.judged(low, certain=True)


W = array(64, 32, seed=3)
CASES = {
    "a small probability in bfloat16": (
        "y = Sigmoid (x)",
        "bfloat16",
        np.full((4, 64), -6.5, np.float32),
        {},
        1.0,
        1.0,
    ),
    "the same in float16": ("y = Sigmoid (x)", "float16", np.full((4, 64), -6.5, np.float32), {}, 0.0, 1e-3),
    "a sum beyond float16": (
        "y = ReduceMean <keepdims = 1> (x, axes)",
        "float16",
        np.full((4, 64), 2000.0, np.float32),
        {"axes": np.array([1], np.int64)},
        np.inf,
        np.inf,
    ),
    "a product": ("y = MatMul (x, w)", "float16", array(4, 64, seed=1), {"w": W}, 1e-4, 1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_the_worst_draw_is_within(case):
    body, dtype, x, initializers, least, most = CASES[case]
    result = judged(body, dtype, x, **initializers)
    assert result.draws is not None
    largest = result.draws.spread("y")[2]
    assert least <= largest <= most
    assert max(result.draws.plain["y"], largest) == pytest.approx(result.outputs["y"].relative) or np.isinf(largest)


@pytest.mark.parametrize("case", CASES)
def test_a_rule_makes_no_verdict_smaller(case):
    body, dtype, x, initializers, *_ = CASES[case]
    result = judged(body, dtype, x, **initializers)
    assert result.excess * 0.02 >= result.draws.plain["y"] * (1 - 1e-9) or np.isinf(result.excess)


def test_equal_runs_have_equal_draws_and_draws_differ():
    x = array(4, 64, seed=1)
    first, again = (judged("y = MatMul (x, w)", "float16", x, w=W).draws.errors["y"] for _ in range(2))
    assert first == again
    assert len(set(first)) > 1


@pytest.mark.parametrize(("samples", "turns"), [(1, DRAWS), (2, 4), (3, 3), (8, 2), (20, 2)])
def test_turns_show_a_spread(samples, turns):
    source, low = pair("y = MatMul (x, w)", "float16", w=W)
    reference = make_reference(source, source, [{"x": array(4, 64, seed=n)} for n in range(samples)])
    with open_device_runs(reference, low, H100, Limits()) as runs:
        assert runs.turns == turns
        assert len({runs.compared(turn)["y"].of_all for turn in range(runs.turns)}) > 1


CANCELS = "s = MatMul (x, w) d = Sub (s, c) y = Mul (d, k)"


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_the_node_at_which_draws_come_apart_is_said(samples, turn):
    x = array(4, 64, seed=7)
    product = (x.astype(np.float16).astype(np.float64) @ W.astype(np.float16).astype(np.float64)).astype(np.float32)
    constants = {"w": W, "c": product * np.float32(1 - 2**-11), "k": np.array([2.0], np.float32)}
    source, low = pair(CANCELS, "float16", **constants)
    feeds = [{"x": array(4, 64, seed=n)} for n in range(samples - 1)] + [{"x": x}]  # only the last one cancels
    reference = make_reference(source, source, feeds)
    with open_device_runs(reference, low, H100, Limits()) as runs:
        node = amplifier_of(low, runs, "y", turn)
    assert node is not None
    assert node.op_type == "Sub"


def test_the_node_is_not_said_where_results_take_too_much_memory(monkeypatch):
    monkeypatch.setattr(amplifier, "PIECE", 4 * 4 * 32)
    source, low = pair("s = MatMul (x, w) y = Relu (s)", "float16", w=W)
    reference = make_reference(source, source, {"x": array(4, 64, seed=1)})
    with open_device_runs(reference, low, H100, Limits()) as runs:
        assert amplifier_of(low, runs, "y", 1) is None


ERRORS = {  # errors of the draws -> whether they are called ill-conditioned
    (0.01, 0.01, 0.011): False,
    (0.01, 0.01, 0.031): True,
    (1e-5, 1e-5, 9e-4): False,
    (0.01, 0.02, np.inf): True,
}


@pytest.mark.parametrize("errors", ERRORS)
def test_draws_that_are_far_apart_are_ill_conditioned(errors):
    draws = DeviceDraws("H100", "1.31", str(H100), DRAWS, {"y": errors}, {"y": errors[0]})
    assert draws.is_ill_conditioned("y") == ERRORS[errors]


# ---- the verdict ----
MODEL = "(float[4,64] x) => (float[4,32] y) { y = MatMul (x, w) }"
SAID = {
    "CUDA": ({}, "verified", "draws; arithmetic of H100, ONNX Runtime 1.31; not run on a GPU)"),
    "another GPU": ({"device": "A100"}, "estimated", "never measured on a device: the arithmetic of A100"),
    "another release": (
        {"ort": "1.30"},
        "estimated",
        "never measured on a device: the arithmetic of CUDAExecutionProvider in ONNX Runtime 1.30",
    ),
    "the CPU": ({"target": "cpu"}, "verified", "on 1 given sample, rounding emulated"),
}


@pytest.mark.parametrize("case", SAID)
def test_the_verdict_says_whose_arithmetic_it_rests_on(case):
    options, word, end = SAID[case]
    report = amp.transpile(parse(MODEL, w=W), inputs={"x": array(4, 64, seed=1)}, cache=False, **options, prefer="size")
    assert report.verdict_word == word
    assert report.verdict.endswith(end)
    assert (report.draws is None) == (case == "the CPU")


def test_an_unmeasured_kernel_makes_an_estimate():
    model = parse("(float[4,64] x) => (float[4,64] y) { h = MatMul (x, w) y = ThresholdedRelu (h) }", w=array(64, 64))
    report = amp.transpile(model, inputs={"x": array(4, 64, seed=1)}, cache=False, prefer="size")
    assert report.verdict_word == "estimated"
    assert report.verdict.endswith("never measured on a device: the kernels of ThresholdedRelu in float16")


def test_the_cache_gives_the_draws_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, inputs = parse(MODEL, w=W), {"x": array(4, 64, seed=1)}
    options = {"inputs": inputs, "tolerance": 1e-4}
    first, again = (amp.transpile(model, **options, prefer="size") for _ in range(2))
    assert (first.draws is None) == (again.draws is None)
    assert first.draws == again.draws


# ---- the search ----
NET = """(float[4,64] x) => (float[4,8] y) {
    a = MatMul (x, w1) b = Tanh (a) c = MatMul (b, w2) d = Tanh (c) e = MatMul (d, w3) f = Tanh (e) y = MatMul (f, w4)
}"""
WEIGHTS = {"w1": array(64, 64), "w2": array(64, 64, seed=2), "w3": array(64, 64, seed=4), "w4": array(64, 8, seed=5)}


@pytest.mark.parametrize(("most", "low"), [(7, 7), (3, 3), (0, 0)], ids=["all hold", "few hold", "none holds"])
def test_the_search_takes_what_holds_in_all_draws(monkeypatch, most, low):
    """Plant a worst draw that is beyond the limits wherever more than some nodes are low."""
    plain = Judge.judged

    def planted(judge, program, **options):
        result = plain(judge, program, **options)
        if result.draws is None:
            return result
        count = sum(node.op_type in ("MatMul", "Tanh") and node.outputs[0].dtype != 1 for node in program.model.graph)
        return dataclasses.replace(result, excess=2.0) if count > most else result

    monkeypatch.setattr(Judge, "judged", planted)
    report = amp.transpile(parse(NET, **WEIGHTS), inputs={"x": array(4, 64, seed=9)}, cache=False, prefer="size")
    assert report.low_nodes <= low
    assert report.verdict_word == "verified"
    if most == 7:
        assert report.low_nodes == 7
