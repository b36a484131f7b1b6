"""ONNX Runtime's transformers optimizer before a conversion: what it makes, and what happens if it fails."""

import contextlib
import re

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.verification import transformers
from tests.fusion.attention_forms import ALLOWED, FORMS, MIX, SCORES, SEPARATE, TURNED, WEIGHTS, model
from tests.support import array, parse, run, run_emulated

OPTIMIZED = {"com.microsoft::Attention": 1, "com.microsoft::BiasGelu": 1, "com.microsoft::SkipLayerNormalization": 2}


LAYER = (
    f"{SEPARATE} {TURNED} {SCORES} {MIX} d0 = MatMul(o, wo) d = Add(d0, bo) r = Add(d, x)"
    " n = LayerNormalization(r, scale, shift) f0 = MatMul(n, up) f = Add(f0, up_bias) g0 = Div(f, root2) g1 = Erf(g0)"
    " g2 = Add(g1, unit) g3 = Mul(f, g2) g = Mul(g3, half) h0 = MatMul(g, down) h = Add(h0, bo) r2 = Add(h, n)"
    " y = LayerNormalization(r2, scale, shift)"
)
OF_ALL_LAYERS = "w[qkvo]|b[qkvo]|heads|whole|zero|lowest|two|half|scale|shift|up|up_bias|down|root2|unit|mask"


def numbered(text, layer):
    """Return a layer whose values have names of their own; what goes in and out is called as its neighbours call it."""

    def renamed(match):
        name = match[0]
        if name == "x":
            return f"y_{layer - 1}" if layer else "x"
        return name if re.fullmatch(OF_ALL_LAYERS, name) else f"{name}_{layer}"

    return re.sub(r"(?<![<=\[,\w])[a-z]\w*(?=[,) ])(?! *\()(?!=)", renamed, text)


def encoder(width=8, layers=1, mask=ALLOWED):
    """Return an encoder of text, as torch's exporter writes it."""
    body = f"e = Gather(words, ids) x = LayerNormalization(e, scale, shift) {mask}"
    body += "".join(f" {numbered(LAYER, layer)}" for layer in range(layers))
    square = {f"w{name}": array(width, width, seed=i, scale=width**-0.5) for i, name in enumerate("qkvo")}
    added = {f"b{name}": array(width, seed=i + 9, scale=0.2) for i, name in enumerate("qkvo")}
    weights_of = {
        "words": array(30, width),
        "scale": array(width, seed=1, low=0.5),
        "shift": array(width, seed=2, scale=0.1),
        "up": array(width, 4 * width, scale=0.4),
        "up_bias": array(4 * width, scale=0.1),
        "down": array(4 * width, width, scale=0.2),
        "heads": np.array([0, 0, 2, width // 2]),
        "whole": np.array([0, 0, width]),
        "root2": np.float32(2**0.5),
        "unit": np.float32(1),
    }
    shared = {name: WEIGHTS[name] for name in ("ones", "zero", "lowest", "two", "half")}
    header = f"(int64[b,l] ids, float[b,l] m) => (float[b,l,{width}] y_{layers - 1})"
    return parse(f"{header} {{ {body} }}", **square, **added, **weights_of, **shared)


def feeds():
    mask = np.ones((2, 6), np.float32)
    mask[0, :2] = mask[1, 4] = 0  # padding on the left, and a hole
    return {"ids": np.arange(12).reshape(2, 6), "m": mask}


@pytest.fixture(scope="module")
def reports():
    options = {"inputs": feeds(), "optimize": True}
    return {dtype: amp.transpile(encoder(), dtype=dtype, **options, prefer="size") for dtype in ("float16", "bfloat16")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_encoder_is_optimized_then_converted(reports, dtype):
    report = reports[dtype]
    assert report.fused == OPTIMIZED
    assert report.warnings == ()
    assert any("bert-like, 2 heads of 4" in note for note in report.notes)
    assert report.verdict_word == "estimated"  # the fused attention was never measured
    decided = {row.op: row.precision for row in report.decisions}
    assert decided["com.microsoft::Attention"] == decided["com.microsoft::BiasGelu"] == "low"
    expected, result = run(encoder(), feeds())["y_0"], run_emulated(report.program, feeds())["y_0"]
    assert np.linalg.norm(expected - result) <= (0.005 if dtype == "float16" else 0.04) * np.linalg.norm(expected)


def test_the_result_keeps_the_names_of_the_source(reports):
    source, proto = encoder(), reports["float16"].program.to_onnx()
    for kind in ("input", "output"):
        assert [i.name for i in getattr(proto.graph, kind)] == [i.name for i in getattr(source.graph, kind)]
    assert (proto.producer_name, proto.graph.name) == (source.producer_name, source.graph.name)


def test_without_it_the_report_says_what_it_would_do():
    report = amp.transpile(encoder(), inputs=feeds(), prefer="size")
    assert "com.microsoft::Attention" not in report.fused
    offer = "--fuse contrib would write 1 attention as one operator; no device has run it in 16 bits yet"
    assert any(note.startswith(offer) for note in report.notes)
    assert not any("optimize" in note for note in amp.transpile(encoder(), target="tensorrt", verify=False).notes)


def test_without_verification_it_is_not_compared():
    report = amp.transpile(encoder(), optimize=True, verify=False, prefer="size")
    assert report.fused == OPTIMIZED
    assert report.verdict_word == "not checked"


class Child:
    """A child process that does something else."""

    def __init__(self, act):
        self.act = act

    def ask(self, operation, source, destination, *_):
        assert operation == "optimize"
        self.act(source, destination)


def fail(*_):
    raise RUN_ERRORS[0]("IndexError: list index out of range")


def change_weights(source, destination):
    proto = onnx.load(source)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "up")
    values = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(1.05), "up"))
    onnx.save(proto, destination)


def rename_input(source, destination):
    proto = onnx.load(source)
    proto.graph.input[0].name = "tokens"
    for node in proto.graph.node:
        node.input[:] = ["tokens" if name == "ids" else name for name in node.input]
    onnx.save(proto, destination)


FAILURES = {
    "it fails": (fail, "optimizer failed: IndexError: list index out of range"),
    "it writes nothing": (lambda *_: None, "optimizer failed"),
    "it computes something else": (change_weights, "computes another 'y_0'"),
    "it renames an input": (rename_input, "changed the inputs"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_warning_and_the_model_is_converted_without_it(monkeypatch, name):
    act, text = FAILURES[name]
    monkeypatch.setattr(transformers, "lease", lambda: contextlib.nullcontext(Child(act)))
    report = amp.transpile(encoder(), inputs=feeds(), optimize=True, prefer="size")
    (warning,) = report.warnings
    assert warning.startswith("not optimized: ")
    assert text in warning
    assert "\n" not in warning
    assert report.fused == {}
    assert report.verdict_word == "verified"
    assert not any(row.op.startswith("com.microsoft") for row in report.decisions)


def guarded():
    with amp.disable_amp():
        return amp.load(encoder())


REASONS = {
    "no attention was found": lambda: parse("(float[2] x) => (float[2] y) { y = Exp(x) }"),
    "it has regions": guarded,
}


@pytest.mark.parametrize("text", REASONS)
def test_what_cannot_be_optimized_is_said_and_converted(text):
    report = amp.transpile(REASONS[text](), optimize=True, prefer="size")
    assert text in report.warnings[0]


REFUSED = {
    "TensorRT does not have": {"target": "tensorrt"},
    "nothing is changed": {"level": "O0"},
    "the result is for 1.20": {"ort": "1.20"},
}


@pytest.mark.parametrize("text", REFUSED)
def test_options_that_contradict_it_are_refused(text):
    with pytest.raises(amp.OptionError, match=text):
        amp.transpile("missing.onnx", optimize=True, **REFUSED[text], prefer="size")


def test_marks_count_for_the_optimized_nodes():
    report = amp.transpile(encoder(), optimize=True, disable_amp="Attention", verify=False, prefer="size")
    (attention,) = [row for row in report.decisions if row.op == "com.microsoft::Attention"]
    assert attention.precision != "low"


def test_a_model_with_a_form_of_its_own_is_left_to_our_pass():
    report = amp.transpile(model(FORMS["scaled dot product"][0]), optimize=True, prefer="size")
    assert report.fused == {"com.microsoft::Attention": 1}


@pytest.mark.slow
def test_a_layer_takes_ten_launches_at_most(counted, tmp_path):
    ways, taken = {"plain": {"fuse": "none"}, "optimized": {"optimize": True}}, {}
    for layers in (1, 3):
        for way, options in ways.items():
            path = tmp_path / f"{layers}{way}.onnx"
            amp.transpile(encoder(64, layers), path, **options, verify=False, prefer="size")
            taken[layers, way] = counted.model(path, "--dim", "b=2", "--dim", "l=16")["launches"]
    plain, fused = ((taken[3, way] - taken[1, way]) / 2 for way in ways)
    assert fused <= 10
    assert fused < plain / 2
