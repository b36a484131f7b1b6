"""The default aim: the smallest conversion that is predicted at most a tenth slower than the fastest one."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.precision.balance import Candidate, balanced
from amp_transpiler.report.headline import headline, kept_words, predicted_words, slower_words
from tests.support import array, chain, parse

# (milliseconds, bytes of weights, bytes of the file unless they are the same) of what has the most low nodes, of the
# fastest, of float32 -> which is chosen.
CHOICES = {
    "the smallest is the fastest": ((1.0, 10), (1.0, 10), (2.0, 20), "low"),
    "the smallest is a little slower": ((1.09, 10), (1.0, 15), (2.0, 20), "low"),
    "the smallest is too slow": ((1.11, 10), (1.0, 15), (2.0, 20), "time"),
    "float32 is the fastest": ((1.2, 10), (1.15, 15), (1.0, 20), "float32"),
    "a smaller one is as good as float32": ((1.2, 10), (1.05, 15), (1.0, 20), "time"),
    "without weights time decides": ((1.05, 0), (1.0, 0), (1.02, 0), "time"),
    "without weights float32 may be the fastest": ((1.05, 0), (1.02, 0), (1.0, 0), "float32"),
    "all are the same": ((1.0, 0), (1.0, 0), (1.0, 0), "low"),
    "slower, and its casts outweigh its weights": ((1.05, 10, 31), (1.05, 10, 31), (1.0, 20, 30), "float32"),
    "slower, and its file hardly smaller": ((1.05, 10, 2999), (1.02, 15, 2980), (1.0, 20, 3000), "float32"),
    "slower, and its file smaller": ((1.05, 10, 2969), (1.02, 15, 2980), (1.0, 20, 3000), "low"),
    "the smallest file of two slower ones that save some": ((1.05, 10, 31), (1.02, 15, 25), (1.0, 20, 30), "time"),
    "as fast, though its casts outweigh its weights": ((1.0, 10, 31), (1.0, 10, 31), (1.0, 20, 30), "low"),
}


def candidate(milliseconds, weights, file=None):
    return Candidate(milliseconds, weights, lambda: weights if file is None else file)


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_chosen(name):
    *rows, expected = CHOICES[name]
    candidates = {aim: candidate(*row) for aim, row in zip(("low", "time", "float32"), rows, strict=True)}
    assert balanced(candidates) == expected


def test_what_breaks_the_limits_is_out_of_question():
    assert balanced({"time": candidate(1.0, 15), "float32": candidate(1.2, 20)}) == "time"
    assert balanced({"float32": candidate(9.0, 20)}) == "float32"


def test_a_file_is_sized_only_where_a_conversion_is_slower_than_float32():
    def unasked():
        raise AssertionError("asked for its size")

    assert balanced({"low": Candidate(1.0, 10, unasked), "float32": Candidate(1.05, 20, unasked)}) == "low"


PRODUCT = parse("(float[N,1024] x) => (float[N,1024] y) { y = MatMul (x, w) }", w=array(1024, 1024))
FIXED = parse("(float[1,4] x) => (float[1,4] y) { y = MatMul (x, w) }", w=array(4, 4))
CONVS = parse(
    "(float[N,64,32,32] x) => (float[N,64,32,32] y) { "
    "a = Conv <pads = [1,1,1,1]> (x, w) b = Relu (a) y = Conv <pads = [1,1,1,1]> (b, w) }",
    w=array(64, 64, 3, 3),
)
ACTIVATIONS = chain(*["Tanh ({})"] * 8, shape="float[N,1024]")
LOOKUP = parse("(int64[N] i) => (float[N,64] y) { y = Gather (w, i) }", w=array(300, 64))
# model, size of its batch -> whether it gains, and what is said of a larger batch.
MODELS = {
    "a large product": (PRODUCT, 65536, True, ""),
    "a product of one row": (PRODUCT, 1, False, "it gains from N="),
    "a product of fixed size": (FIXED, None, False, ""),
    "many pictures": (CONVS, 256, True, ""),
    "one picture": (CONVS, 1, False, "it gains from N="),
    "activations of many rows": (ACTIVATIONS, 65536, True, ""),
    "activations of few rows": (ACTIVATIONS, 8, False, ""),
    "one activation between two casts": (chain("Tanh ({})", shape="float[N,1024]"), 65536, False, ""),
}


def converted(name, **options):
    model, batch, *_ = MODELS[name]
    dims = {} if batch is None else {"N": batch}
    return amp.transpile(model, verify=False, dims=dims, **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_becomes_16_bit_where_that_costs_no_time(name):
    _, _, gains, _ = MODELS[name]
    report = converted(name)
    before, after = report.predicted_ms
    assert after <= 1.1 * before
    assert report.kept_float32 is not gains
    assert (report.low_nodes > 0) is gains
    assert not report.slower
    if gains:
        assert report.weight_bytes[1] <= report.weight_bytes[0]
        assert kept_words(report) == ""


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if not row[2]])
def test_a_model_that_gains_nothing_says_so_first_and_from_where_on_it_would(name):
    model, _, _, said = MODELS[name]
    report = amp.transpile(model, verify=False)  # the batch that is given is not asked about
    words = kept_words(report)
    assert words.startswith("kept float32: float16 is predicted no faster at these shapes on H100: ")
    assert headline(report).lower().startswith(words.lower())
    assert said in words
    if report.pays_from:
        dim, size = report.pays_from.split("=")
        assert not amp.transpile(model, verify=False, dims={dim: 2 * int(size)}).kept_float32


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prefer", ["size", "low", "time"])
def test_the_other_preferences(name, prefer):
    report, default = converted(name, prefer=prefer), converted(name)
    if prefer == "time":
        assert report.predicted_ms[1] <= 1.001 * min(default.predicted_ms)
    else:
        assert report.low_nodes == report.nodes
        assert report.weight_bytes[1] <= default.weight_bytes[1]
        assert report.slower is (report.predicted_ms[1] > 1.01 * report.predicted_ms[0])
        assert bool(slower_words(report)) is report.slower


TANHS = " ".join(f"t{i} = Tanh (t{i - 1})" for i in range(1, 40))
# One row is a little slower in 16 bits, for its two casts. Width of the product -> whether its weights outweigh these.
WIDTHS = {4: False, 64: True}


@pytest.mark.parametrize("as_file", [False, True], ids=["message", "file"])
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_slower_becomes_16_bit_only_where_its_file_is_smaller(width, as_file, tmp_path):
    text = f"(float[1,{width}] x) => (float[1,{width}] y) {{ t0 = MatMul (x, w) {TANHS} y = Tanh (t39) }}"
    model = parse(text, w=array(width, width))
    onnx.save(model, tmp_path / "model.onnx")
    source = tmp_path / "model.onnx" if as_file else model
    smallest = amp.transpile(source, tmp_path / "small.onnx", verify=False, prefer="size")
    before, after = smallest.predicted_ms
    assert before < after < 1.1 * before
    assert smallest.weight_bytes[1] < smallest.weight_bytes[0]
    saved = (tmp_path / "small.onnx").stat().st_size < (tmp_path / "model.onnx").stat().st_size
    assert saved is WIDTHS[width]
    assert amp.transpile(source, verify=False).kept_float32 is not saved


@pytest.mark.parametrize("target", ["cpu", "tensorrt"])
def test_where_nothing_is_predicted_the_smallest_is_wanted(target):
    default, smallest = converted_for(target, "balance"), converted_for(target, "size")
    assert default.low_nodes == smallest.low_nodes == 1
    assert default.predicted_ms == (None, None)
    assert not default.kept_float32
    assert not default.slower


def test_on_a_cpu_it_is_said_that_16_bits_are_seldom_faster():
    report = converted_for("cpu", "balance")
    assert [note for note in report.notes if note.startswith("on a CPU float16 makes a model smaller, and seldom f")]
    for target in ("cuda", "tensorrt"):
        assert not [note for note in converted_for(target, "size").notes if note.startswith("on a CPU")]
    assert not [
        note for note in amp.transpile(LOOKUP, verify=False, target="cpu", disable_amp=".*").notes if "CPU" in note
    ]


def converted_for(target, prefer):
    return amp.transpile(FIXED, verify=False, target=target, prefer=prefer)


@pytest.mark.parametrize("target", ["cpu", "tensorrt"])
def test_time_needs_prices(target):
    with pytest.raises(amp.OptionError, match=f"no.* for target {target}"):
        converted_for(target, "time")


def test_what_may_not_be_low_is_kept_too():
    report = amp.transpile(LOOKUP, verify=False, disable_amp=".*")
    assert kept_words(report) == "kept float32: nothing of it becomes float16"


def test_what_is_forced_stays_low():
    report = amp.transpile(FIXED, verify=False, include=".*")
    assert (report.low_nodes, report.kept_float32) == (1, False)


def test_low_inputs_and_outputs_are_no_float32_model():
    report = amp.transpile(FIXED, verify=False, keep_io_types=False)
    assert not report.kept_float32


@pytest.mark.parametrize("name", ["activations of few rows", "a product of one row"])
def test_a_cuda_graph_is_told_where_launches_decide(name):
    report = converted(name)
    plain, graph = report.predicted_ms[0], report.predicted_graph_ms[0]
    assert graph < plain
    assert ("as a CUDA graph" in predicted_words(report)) is (plain > 1.1 * graph)


def test_no_cuda_graph_is_told_where_the_device_decides():
    assert "CUDA graph" not in predicted_words(converted("a large product"))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("prefer", ["balance", "time"])
def test_what_stays_float32_has_the_time_of_its_source(prefer, verify):
    """A result's normalisations are written as ONNX Runtime fuses them; what stays float32 is written as its source.

    Both precisions of such a result take the same time, which is a third of the source's.
    """
    parts = "p = Pow (x, two) m = ReduceMean (p, last) a = Add (m, eps) s = Sqrt (a) r = Reciprocal (s)"
    text = f"(float[4,64] x) => (float[4,64] y) {{ {parts} n = Mul (x, r) g = Mul (n, c) y = MatMul (g, w) }}"
    numbers = {"two": array() * 0 + 2, "eps": array() * 0 + 1e-6, "last": np.array([-1])}
    report = amp.transpile(parse(text, w=array(64, 64), c=array(64), **numbers), prefer=prefer, verify=verify)
    times = report.known_times()
    assert not report.kept_float32
    assert times.result < 0.5 * times.fp32
