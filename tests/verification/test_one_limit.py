"""One limit: named or not, emulated or in ONNX Runtime's default session, for every target; and told in the verdict."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.verification import default_session
from amp_transpiler.verification.default_session import SESSION, DefaultSession
from tests import support
from tests.support import array, chain, parse

DEEP = chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=array(4, 4, seed=2))
MODELS = {
    "products": (DEEP, array(2, 4)),
    "an exponential that data speak for": (
        chain("MatMul ({}, w)", "Exp ({})", "MatMul ({}, w)", w=array(4, 4, seed=2, scale=0.3)),
        array(2, 4),
    ),
    "a sum that the limit forbids": (
        parse(
            "(float[2,4] x) => (float[2,4] y) { b = Mul (x, large) c = Add (b, x) y = Sub (c, b) }",
            large=np.float32(700.0),
        ),
        array(2, 4),
    ),
    "a softmax": (chain("MatMul ({}, w)", "Softmax ({})", w=array(4, 4, seed=3, scale=3.0)), array(2, 4)),
    "labels": (
        parse("(float[2,4] x) => (float[2,4] y, int64[2] l) { y = MatMul (x, w) l = ArgMax <axis=1, keepdims=0> (y) }",
              w=array(4, 4)),
        array(2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", [True, False], ids=["given", "made up"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", "2%"), ("bfloat16", 0.05)])
@pytest.mark.parametrize("name", MODELS)
def test_a_limit_that_is_named_decides_as_the_same_one_that_is_not(name, dtype, tolerance, given):
    model, x = MODELS[name]
    options = {"inputs": {"x": x} if given else None, "dtype": dtype, "prefer": "size", "cache": False}
    default, named = amp.transpile(model, **options), amp.transpile(model, **options, tolerance=tolerance)
    assert to_proto(default.program.model).SerializeToString() == to_proto(named.program.model).SerializeToString()
    assert default.verdict == named.verdict
    assert f"of float32, allowed {'2%' if dtype == 'float16' else '5%'}, " in default.verdict


PAIR = parse("(float[2,4] x) => (float[2,4] y, float[2,4] z) { y = MatMul (x, w) z = Tanh (y) }", w=array(4, 4))
STATED = {
    "one for all": ({"tolerance": "3%"}, ", allowed 3%, "),
    "a fraction": ({"tolerance": 0.015}, ", allowed 1.5%, "),
    "by output": ({"tolerance": "5%,y=1%"}, ", allowed 1% to 5% by output, "),
    "of one output alone": ({"tolerance": {"y": 0.01}, "level": "O1"}, ", allowed 1%, "),
    "the default": ({}, ", allowed 2%, "),
    "none": ({"level": "O2"}, ""),
    "a metric's": ({"metric": lambda exact, low: 0.0, "metric_bound": 1.0}, ""),
}


@pytest.mark.parametrize("name", STATED)
def test_the_verdict_tells_what_is_allowed(name):
    options, said = STATED[name]
    verdict = amp.transpile(PAIR, inputs={"x": array(2, 4)}, prefer="size", **options).verdict
    assert said in verdict
    assert ("allowed " in verdict.replace("at most 1 allowed", "")) is bool(said)


def worse_by(monkeypatch, error, *, of_source=0.0):
    """Have ONNX Runtime's default session be off by so much for each low product, and by `of_source` for the source."""
    plain = DefaultSession.outputs

    def outputs(self, program, reference):
        low = sum(node.op_type == "MatMul" and "FLOAT16" in str(node.outputs[0].dtype) for node in program.model.graph)
        factor = np.float32(1.0 + (of_source if program is self.source else low * error))
        return [{name: exact * factor for name, exact in sample.items()} for sample in plain(self, program, reference)]

    monkeypatch.setattr(DefaultSession, "outputs", outputs)


@pytest.mark.parametrize("target", ["cuda", "cpu", "any", "tensorrt"])
@pytest.mark.parametrize(("error", "least", "most"), [(0.0, 4, 4), (0.004, 4, 4), (0.006, 1, 3), (0.5, 0, 0)])
def test_the_default_session_is_held_to_the_limit_inside_the_search(monkeypatch, target, error, least, most):
    worse_by(monkeypatch, error)
    report = amp.transpile(DEEP, inputs={"x": array(2, 4)}, target=target, tolerance="2%", prefer="size", cache=False)
    products = sum(row.op == "MatMul" and row.precision == "low" for row in report.decisions)
    is_rounded = has_low_values(report.program)  # what is not rounded is no estimate, whatever runs it
    assert report.verdict_word == ("estimated" if target == "tensorrt" and is_rounded else "verified"), report.verdict
    assert least <= products <= most
    assert SESSION in report.checks
    assert max(row.relative for row in report.outputs.values()) <= 0.02
    if is_rounded and error:
        assert report.by_default["y"] == report.outputs["y"].relative
        assert f"{100 * report.by_default['y']:.3g}% in ONNX Runtime's default session" in report.verdict


@pytest.mark.parametrize(("of_source", "low"), [(0.1, 4), (0.03, 0)])
def test_what_the_source_is_off_by_itself_is_not_blamed_on_a_conversion(monkeypatch, of_source, low):
    """Each conversion is off by 0.12 where all products are low: no more than twice the source counts as its own."""
    worse_by(monkeypatch, 0.03, of_source=of_source)
    report = amp.transpile(DEEP, inputs={"x": array(2, 4)}, tolerance="2%", prefer="size", cache=False)
    products = sum(row.op == "MatMul" and row.precision == "low" for row in report.decisions)
    assert products >= low
    assert report.verdict_word == "verified"


def test_a_session_that_does_not_run_it_is_told_by_the_check_of_the_file(monkeypatch):
    monkeypatch.setattr(DefaultSession, "outputs", lambda *_: None)
    report = amp.transpile(DEEP, inputs={"x": array(2, 4)}, prefer="size", cache=False)
    assert report.by_default == {}
    assert SESSION in report.checks


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("tolerance", [0.0, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("name", ["products", "an exponential that data speak for", "a softmax"])
def test_a_reachable_limit_is_kept_for_every_target(name, tolerance, target):
    model, x = MODELS[name]
    report = amp.transpile(model, inputs={"x": x}, target=target, tolerance=tolerance)
    assert report.verdict_word == "verified", report.verdict
    by_default = support.run(to_proto(report.program.model), {"x": x}, optimized=True)
    exact = support.run(model, {"x": x})
    for result, wanted in zip(by_default.values(), exact.values(), strict=True):
        assert support.relative(wanted, result) <= max(tolerance, 2.0**-18)


def test_the_numbers_are_not_run_twice(monkeypatch):
    runs = []
    plain = default_session._run
    monkeypatch.setattr(
        default_session, "_run", lambda session, reference: runs.append(reference) or plain(session, reference)
    )
    amp.transpile(DEEP, inputs={"x": array(2, 4)}, prefer="size", cache=False)
    assert [reference is None for reference in runs] == [False, True], "in the search, then the file is opened only"
