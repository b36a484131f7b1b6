"""Reports of fused results: the gain is told against the source, the precision was chosen between fused programs."""

import dataclasses

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.report import PredictedTimes
from amp_transpiler.report.as_json import report_as_dict
from amp_transpiler.report.headline import kept_words, predicted_words
from tests.fusion.attention_forms import FORMS, model as attention_model
from tests.fusion.test_fusion import AFFINE, BLOCK, LAYER_NORM, NORM, RMS, SHAPES, model


def transpiled(body=BLOCK, **options):
    settings = {"verify": False, "cache": False, "fuse": "contrib", **options}
    return amp.transpile(model(20, body, SHAPES["open"]), **settings)


# aims, and sizes of open dimensions -> is the result kept in float32, and is it where nothing is fused
AIMS = {
    "size": ({"prefer": "size"}, False, False),
    # Fused, 16 bits are a little slower than float32, and of the few weights too little is saved for that.
    "balance, many rows": ({"dims": {"batch": 65536, "length": 64}}, True, False),
    "balance, few rows": ({}, True, True),
    "time, few rows": ({"prefer": "time"}, True, True),
    "O2": ({"level": "O2", "dims": {"batch": 1}}, False, False),
}


@pytest.mark.parametrize("name", AIMS)
def test_the_gain_is_that_over_the_source_as_the_user_has_it(name):
    options, is_kept, is_kept_unfused = AIMS[name]
    report, plain = transpiled(**options), transpiled(**options, fuse="none")
    assert report.fused
    assert (report.kept_float32, plain.kept_float32) == (is_kept, is_kept_unfused)
    assert report.predicted_ms[0] == pytest.approx(plain.predicted_ms[0])
    assert report.predicted_graph_ms[0] == pytest.approx(plain.predicted_graph_ms[0])
    assert report.predicted_ms[1] < plain.predicted_ms[1]
    times = report.known_times()
    assert times.fp32_fused < times.fp32
    assert plain.known_times().fp32_fused is None


def test_whether_low_precision_pays_is_asked_between_fused_programs():
    report = transpiled()
    times = report.known_times()
    assert times.result == pytest.approx(times.fp32_fused)  # it is that program
    assert times.fp32_fused <= times.lowered
    assert kept_words(report).startswith("kept float32: float16 is predicted no faster at these shapes on H100: ")


def test_a_gain_by_fusing_is_none_by_low_precision():
    report = dataclasses.replace(transpiled(), times=PredictedTimes(2.0, 1.0, lowered=1.5, fp32_fused=1.0))
    assert kept_words(report) == (
        "kept float32: float16 is predicted no faster at these shapes on H100: 1.5 ms instead of 1 ms"
    )
    assert predicted_words(report) == "1 ms instead of 2 ms on H100 (2 times as fast)"


def test_what_fuses_nothing_is_compared_with_itself():
    report = transpiled("y = MatMul (x, w)")
    assert (report.fused, report.known_times().fp32_fused) == ({}, None)


NEEDS = "amp_transpiler.needs_onnxruntime"
SUM = f"s = Add (x, z) y = {NORM}"
# body, opset, options -> the operators that only ONNX Runtime has
OWN = {
    "contrib": (BLOCK, 20, {}, ["com.microsoft::BiasGelu", "com.microsoft::SkipLayerNormalization"]),
    "O2": (BLOCK, 20, {"level": "O2"}, ["com.microsoft::BiasGelu", "com.microsoft::SkipLayerNormalization"]),
    "kept in float32": (SUM, 20, {"dims": {"batch": 1}}, ["com.microsoft::SkipLayerNormalization"]),
    "of ONNX's own domain": (f"{RMS} q = Div (x, s) y = Mul (q, scale)", 18, {}, ["SimplifiedLayerNormalization"]),
    "standard": (f"{LAYER_NORM} {AFFINE}", 18, {"fuse": "standard"}, []),
    "nothing": (SUM, 20, {"fuse": "none"}, []),
    "nothing that fits": ("y = MatMul (x, w)", 20, {}, []),
}


@pytest.mark.parametrize("name", OWN)
def test_file_report_and_json_say_what_only_onnx_runtime_has(name, tmp_path):
    body, opset, options, operators = OWN[name]
    settings = {"verify": False, "cache": False, "fuse": "contrib", **options}
    report = amp.transpile(model(opset, body, SHAPES["open"]), tmp_path / "out.onnx", **settings)
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata.get(NEEDS, "") == ", ".join(operators)
    assert list(report.needs_onnxruntime) == report_as_dict(report)["needs_onnxruntime"] == operators
    needs = "; the result needs ONNX Runtime, whose own operators are among them"
    assert any(note.endswith(needs) for note in report.notes) is bool(operators)


GUARDED = "the mask chooses scores"  # its rows without any score are an average
PIECES = {GUARDED: False, "without a mask": True}  # form -> is its attention one operator


@pytest.mark.parametrize("form", PIECES)
def test_a_small_attention_stays_in_pieces_where_that_is_faster(form):
    is_fused, dims = PIECES[form], {"b": 1, "l": 4}
    proto = attention_model(FORMS[form][0])
    report = amp.transpile(proto, fuse="contrib", verify=False, cache=False, prefer="size", dims=dims)
    fused = {operator.rpartition("::")[2] for operator in report.fused}
    assert bool(fused & {"Attention", "MultiHeadAttention"}) is is_fused
    said = "not fused, since the price list says that it is faster without: Attention"
    assert (said in report.notes) is not is_fused
