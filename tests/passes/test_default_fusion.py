"""What nobody asked to fuse: at level auto and O2 for CUDA, all that a device has confirmed, unless it does harm."""

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.ops.fusions import FUSIONS, default_fusions, may_fuse
from amp_transpiler.targets.arithmetic import arithmetic_of
from tests.passes.test_fusion import BLOCK, SHAPES, model

FORMATS = ("float16", "bfloat16")
FUSED = {"com.microsoft::BiasGelu": 1, "com.microsoft::SkipLayerNormalization": 1}


def transpiled(body=BLOCK, dst=None, **options):
    settings = {"verify": False, "cache": False, **options}
    return amp.transpile(model(20, body, SHAPES["open"]), dst, **settings)


@pytest.mark.parametrize("low", FORMATS)
@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda fusion: fusion.name)
def test_what_is_confirmed_is_what_a_device_has_run(fusion, low):
    arithmetic = arithmetic_of("H100", "1.31")
    rows = [row for operator in fusion.operators for row in arithmetic.rows.get((operator, low), ())]
    answered = {row.operator for row in rows if row.is_measured} - {row.operator for row in rows if not row.is_measured}
    assert (answered == set(fusion.operators)) is (low in fusion.confirmed)
    assert bool(fusion.unconfirmed) is (fusion.confirmed != FORMATS)


def test_the_default_leaves_out_what_is_not_confirmed():
    assert default_fusions("float16") == "contrib,-Attention,-FastGelu"
    assert default_fusions("bfloat16") == "contrib,-Attention,-com.microsoft::Gelu,-FastGelu,-BiasGelu"


ASKED = {
    "auto": ({}, FUSED),
    "auto, time": ({"prefer": "time"}, FUSED),
    "O2": ({"level": "O2"}, FUSED),
    "bfloat16": ({"dtype": "bfloat16"}, {"com.microsoft::SkipLayerNormalization": 1}),
    "none": ({"fuse": "none"}, {}),
    "O1": ({"level": "O1"}, {}),
    "OD": ({"level": "OD"}, {}),
    "policy": ({"policy": "torch"}, {}),
    "preset": ({"preset": "mp1"}, {}),
    "float32": ({"dtype": "float32"}, {}),
    "cpu": ({"target": "cpu"}, {}),
    "any": ({"target": "any"}, {}),
    "tensorrt": ({"target": "tensorrt"}, {}),
    "a list that names a part": ({"amp_lists": amp.static.amp.AutoMixedPrecisionLists(["Gelu"])}, None),
}


@pytest.mark.parametrize("name", ASKED)
def test_who_gets_it(name):
    options, fused = ASKED[name]
    report = transpiled(**options)
    assert report.fused == (fused if fused is not None else {"com.microsoft::SkipLayerNormalization": 1})
    assert not report.warnings
    assert report.settings.get("fuse") == (default_fusions(report.dtype) if report.fused else None)


def test_what_is_fused_by_default_is_named_with_the_way_out(tmp_path):
    report = transpiled(dst=tmp_path / "out.onnx")
    said = "fused before the decision, which --fuse none leaves out: 1 BiasGelu, 1 SkipLayerNormalization; the result"
    assert [note for note in report.notes if note.startswith(said)]
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata["amp_transpiler.needs_onnxruntime"] == ", ".join(FUSED)


def test_nothing_is_said_of_what_an_older_release_lacks():
    report = transpiled(ort="1.26")
    assert report.fused == {"com.microsoft::BiasGelu": 1}
    assert not [note for note in report.notes if note.startswith("not fused")]


def test_a_model_without_parts_is_not_looked_at():
    assert not may_fuse(default_fusions("float16"), 20, {"MatMul", "Softmax", "Relu"})
    assert may_fuse("contrib", 20, {"Softmax"})
    assert not may_fuse("standard", 16, {"Sqrt", "Erf"})


def test_a_recipe_holds_what_was_fused(tmp_path):
    first = transpiled(prefer="size")
    first.save_recipe(tmp_path / "recipe.toml")
    again = transpiled(recipe=tmp_path / "recipe.toml")
    assert again.fused == FUSED
    assert again.settings["fuse"] == default_fusions("float16")
    assert not again.warnings


def test_a_recipe_that_says_nothing_of_it_fuses_nothing(tmp_path):
    former = transpiled(prefer="size", fuse="none")
    assert "fuse" not in former.settings
    former.save_recipe(tmp_path / "recipe.toml")
    again = transpiled(recipe=tmp_path / "recipe.toml")
    assert (again.fused, again.warnings) == ({}, ())
    assert "fuse" not in again.settings


def test_what_is_converted_already_stays_as_it_is():
    half = transpiled(prefer="size", fuse="none").program.to_onnx()
    report = amp.transpile(half, verify=False, cache=False)
    assert report.fused == {}
    assert "nothing to do" in report.verdict
