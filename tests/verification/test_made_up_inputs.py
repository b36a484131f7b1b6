"""The basis of a verdict without given inputs: other pictures for detectors, and outputs that say nothing."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.checker import checker_fault, mend_declared_shapes
from amp_transpiler.passes.convert_opset import ConvertOpset
from amp_transpiler.verification import search, verify
from amp_transpiler.verification.made_up_signals import drawing
from amp_transpiler.verification.synthesis import further_samples, synthesise_inputs
from tests import support
from tests.support import array, chain, parse

EDGES = np.array([[[[-1.0, 1.0]]]], np.float32)  # a detector of edges, steeper than any in smooth noise
DETECTOR = parse(
    "(float[1,1,64,64] image) => (float[1,1,64,63] y) { e = Conv (image, k) d = Sub (e, t) r = Relu (d) y = Abs (r) }",
    k=EDGES,
    t=np.float32(0.8),
)
BLIND = parse(
    "(float[1,1,64,64] image) => (float[1,1,64,64] y) { s = Mul (image, f) y = Sub (s, f) }", f=np.float32(1e-6)
)


def test_a_drawing_has_dark_strokes_on_a_light_page_in_either_layout():
    page = drawing((2, 3, 64, 48), np.random.default_rng(0))
    assert page.shape == (2, 3, 64, 48)
    assert set(np.unique(page)) == {0.1, 0.95}
    assert drawing((2, 64, 48, 3), np.random.default_rng(0), channels_last=True).shape == (2, 64, 48, 3)


def test_a_detector_that_finds_nothing_in_noise_gets_something_to_find():
    report = amp.transpile(DETECTOR, level="O2")
    assert report.verdict_word == "compared", report.verdict
    assert report.outputs["y"].relative > 0.0  # zeros would agree exactly
    assert "practically zero" not in report.verdict


def test_an_output_that_is_practically_zero_is_not_judged_on_made_up_inputs():
    with pytest.raises(amp.CheckFailed, match=r"could not be checked: .*practically zero on made-up inputs"):
        amp.transpile(BLIND, level="O2", tolerance=1e-6)
    report = amp.transpile(BLIND, level="O2")
    assert report.outputs["y"].relative > 1e-6
    assert (
        report.verdict
        == "structure only: no output can be judged; not judged: 'y' (practically zero on made-up inputs)"
    )


def test_the_same_output_is_judged_on_given_inputs():
    image = np.linspace(0.0, 1.0, 64 * 64, dtype=np.float32).reshape(1, 1, 64, 64)
    with pytest.raises(amp.CheckFailed, match="'y'"):
        amp.transpile(BLIND, level="O2", tolerance=1e-6, inputs={"image": image})


WRONG = {
    "an intermediate": (
        "(float[2,3] x) => (float[3,2] y) <float[9] t> { t = Transpose <perm = [1, 0]> (x) y = Relu (t) }",
        "intermediate",
    ),
    "a size of an output": ("(float[2,3] x) => (float[7,2] y) { y = Transpose <perm = [1, 0]> (x) }", "sizes"),
    "the rank of an output": ("(float[2,3] x) => (float[6] y) { y = Transpose <perm = [1, 0]> (x) }", "rank"),
}


@pytest.mark.parametrize(("graph", "said"), WRONG.values(), ids=WRONG)
def test_declared_shapes_that_are_wrong_are_left_out(graph, said):
    program = amp.load(parse(graph))
    assert checker_fault(program.model)
    assert said in mend_declared_shapes(program.model)
    assert not checker_fault(program.model)
    onnx.checker.check_model(program.to_onnx(), full_check=True)


def test_a_right_model_is_not_touched():
    program = amp.load(parse("(float[2,3] x) => (float[3,2] y) { y = Transpose <perm = [1, 0]> (x) }"))
    assert mend_declared_shapes(program.model) == ""
    assert list(program.model.graph.outputs[0].shape) == [3, 2]


@pytest.mark.parametrize("graph", [graph for graph, _ in WRONG.values()], ids=WRONG)
def test_a_wrong_shape_does_not_stand_in_the_way_of_a_higher_opset(graph):
    program = amp.load(parse(graph, opset=12))
    ConvertOpset(21)(program.model)
    assert program.model.graph.opset_imports[""] == 21


def test_a_failed_check_tells_all_that_was_found_out():
    with pytest.raises(amp.CheckFailed) as caught:
        amp.transpile(DETECTOR, level="O2", tolerance=1e-9)
    report = caught.value.report
    assert report.verdict.startswith("failed")
    assert (report.low_nodes, report.nodes) == (4, len(report.decisions))
    assert report.program is not None
    assert report.outputs["y"].relative > 1e-9


def test_without_evidence_float32_throughout_keeps_the_limit(monkeypatch):
    def cannot(*_, **__):
        raise ModelError("no derivative here")

    monkeypatch.setattr(search, "collect_evidence", cannot)
    report = amp.transpile(DETECTOR, level="auto", tolerance=1e-9, cache=False, prefer="size")
    assert report.low_nodes == 0
    assert any("no derivative here" in note for note in report.notes)


def test_several_samples_differ_in_numbers_and_scale():
    model = load(
        parse("(float[1,3,32,32] image, int64[1,4] ids) => (float[1,3,32,32] y) { y = Identity(image) }")
    ).model
    samples = [synthesise_inputs(model, lambda feeds: None), *further_samples(model, lambda feeds: None)]
    first, small, large = (np.abs(feeds["image"]).max() for feeds in samples)
    assert small < 0.3 * first
    assert large > 2.0 * first
    assert all(feeds["ids"].dtype == np.int64 and feeds["image"].dtype == np.float32 for feeds in samples)


def test_a_further_sample_that_the_model_refuses_is_left_out():
    model = load(parse("(float[4] x) => (float[4] y) { y = Identity(x) }")).model

    def run(feeds):
        if np.abs(feeds["x"]).max() > 2.0:
            raise ValueError("too large")

    assert len(list(further_samples(model, run))) == 1


SQUARE = parse("(float[8,8] x) => (float[8,8] y) { [a] h = MatMul (x, w) [b] y = MatMul (h, w) }", w=array(8, 8))
SQUARE_RESULT = 8 * 8 * 4  # bytes of each of its two


def test_a_limit_without_data_is_held_on_several_samples():
    for tolerance in (1e-4, None):
        report = amp.transpile(SQUARE, tolerance=tolerance, prefer="size")
        assert report.verdict_word == "plausible"
        assert " on 3 made-up samples of differing scale" in report.verdict
        assert [row.samples for row in report.outputs.values()] == [3]
    assert " on 1 made-up sample (" in amp.transpile(SQUARE, level="O2").verdict, "no limit is held"


def test_where_results_are_large_the_limit_is_held_on_fewer_samples(monkeypatch):
    monkeypatch.setattr(verify, "PIECE", 2 * SQUARE_RESULT - 1)
    assert (
        "on 2 made-up samples of differing scale"
        in amp.transpile(SQUARE, tolerance=1e-4, cache=False, prefer="size").verdict
    )
    monkeypatch.setattr(verify, "PIECE", 2 * SQUARE_RESULT)
    assert (
        "on 3 made-up samples of differing scale"
        in amp.transpile(SQUARE, tolerance=1e-4, cache=False, prefer="size").verdict
    )


def test_of_fewer_samples_the_largest_stays():
    model = load(parse("(float[4,64] x) => (float[4,64] y) { y = Identity(x) }")).model
    small, large = further_samples(model, lambda feeds: None)
    (alone,) = further_samples(model, lambda feeds: None, 1)
    np.testing.assert_array_equal(alone["x"], large["x"])
    assert np.abs(small["x"]).max() < np.abs(large["x"]).max()
    assert not list(further_samples(model, lambda feeds: None, 0))


def test_a_sample_beyond_float32_says_nothing():
    """Three times as large a signal is infinite after the exponential."""
    model = chain("Mul ({}, f)", "Exp ({})", "MatMul ({}, w)", shape="float[4,4]", w=array(4, 4), f=np.float32(60.0))
    report = amp.transpile(model, tolerance=0.02, prefer="size")
    assert "on 2 made-up samples of differing scale" in report.verdict


def test_what_overflows_at_another_scale_is_float32():
    model = parse(
        "(float[4,4] x) => (float[4,4] y) { [a] h = MatMul (x, big) [b] s = Mul (h, tiny) [c] y = MatMul (s, w) }",
        big=np.full((4, 4), 12000.0, np.float32),
        tiny=np.float32(1e-4),
        w=array(4, 4),
    )
    assert support.decisions(amp.transpile(model, level="O2"))["a"] == "low", "no limit is held"
    for tolerance in (0.02, None):
        report = amp.transpile(model, tolerance=tolerance, prefer="size", rescale="no")
        assert support.decisions(report)["a"] == "high"
        report = amp.transpile(model, tolerance=tolerance, prefer="size")
        assert report.rescaled
        assert support.decisions(report)["a"] == "low", "powers of two make it fit"
