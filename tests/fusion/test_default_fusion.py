"""Fusion by default: at levels auto and O2 for CUDA, what a device has confirmed, unless the result is worse."""

import dataclasses

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.alternatives import fused_or_not
from amp_transpiler.alternatives.fused_or_not import is_better_unfused, was_held_back
from amp_transpiler.fusion import fuse as fuse_module
from amp_transpiler.ops.fusions import FUSIONS, default_fusions, may_fuse
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.plan import plan
from amp_transpiler.report.facts import Findings
from amp_transpiler.report.verdict import Judgement, Verdict
from amp_transpiler.targets.arithmetic import arithmetic_of
from tests.fusion.test_fusion import AFFINE, BLOCK, LAYER_NORM, RMS, SHAPES, feeds, model

FORMATS = ("float16", "bfloat16")
FUSED = {"com.microsoft::BiasGelu": 1, "com.microsoft::SkipLayerNormalization": 1}


def transpiled(body=BLOCK, dst=None, **options):
    decides = {"level", "policy", "preset", "recipe", "prefer"}.isdisjoint(options) and options.get(
        "dtype"
    ) != "float32"
    settings = {"verify": False, "cache": False, **({"prefer": "size"} if decides else {}), **options}
    return amp.transpile(model(20, body, SHAPES["open"]), dst, **settings)


@pytest.mark.parametrize("low", FORMATS)
@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda fusion: fusion.name)
def test_what_is_confirmed_is_what_a_device_has_run(fusion, low):
    arithmetic = arithmetic_of("H100", "1.31")
    rows = [row for operator in fusion.operators for row in arithmetic.rows.get((operator, low), ())]
    answered = {row.operator for row in rows if row.is_measured} - {row.operator for row in rows if not row.is_measured}
    assert (low in fusion.by_default) is (answered == set(fusion.operators) and "checker" not in fusion.withheld)
    assert bool(fusion.withheld) is (fusion.by_default != FORMATS)


def test_what_the_checker_refuses_is_not_fused_by_default():
    body = f"{RMS} q = Div (x, s) y = Mul (q, scale)"
    report = amp.transpile(model(18, body, SHAPES["open"]), verify=False, cache=False, prefer="size")
    assert report.fused == {}
    onnx.checker.check_model(report.program.to_onnx())
    newer = amp.transpile(model(18, body, SHAPES["open"]), verify=False, cache=False, prefer="size", fuse="contrib")
    assert newer.fused == {"SimplifiedLayerNormalization": 1}


def test_what_is_fused_by_default_passes_the_checker():
    onnx.checker.check_model(transpiled().program.to_onnx(), full_check=True)


def test_the_default_leaves_out_what_is_not_confirmed():
    assert default_fusions("float16") == "contrib,-Attention,-SimplifiedLayerNormalization"
    names = "-Attention,-SimplifiedLayerNormalization,-BiasGelu"
    assert default_fusions("bfloat16") == f"contrib,{names}"


ASKED = {
    "auto": ({}, FUSED),
    "auto, balance": ({"prefer": "balance", "dims": {"batch": 65536, "length": 64}}, FUSED),
    "auto, kept in float32": ({"prefer": "balance"}, {}),
    "auto, kept in float32 for the time": ({"prefer": "time"}, {}),
    "O2, nothing low": ({"level": "O2", "disable_amp": "."}, {}),
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


GELU = "u = Div (n, root2) k = Erf (u) o = Add (k, one) g = Mul (n, o) y = Mul (g, half)"
WRITTEN_OUT = f"{LAYER_NORM} {AFFINE} {GELU}".replace("y = Add", "n = Add")
ENGINES = {
    "auto": ({}, {"Gelu": 1, "LayerNormalization": 1}),
    "O2": ({"level": "O2"}, {"Gelu": 1, "LayerNormalization": 1}),
    "bfloat16": ({"dtype": "bfloat16"}, {"Gelu": 1, "LayerNormalization": 1}),
    "none": ({"fuse": "none"}, {}),
    "O1": ({"level": "O1"}, {}),
    "policy": ({"policy": "torch"}, {}),
    "float32": ({"dtype": "float32"}, {}),
}


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("name", ENGINES)
def test_engines_get_the_operators_of_onnx(name, target):
    options, fused = ENGINES[name]
    report = transpiled(WRITTEN_OUT, target=target, **options)
    assert report.fused == fused
    assert not report.needs_onnxruntime
    assert report.settings.get("fuse") == ("standard" if fused else None)
    assert not report.warnings


def test_what_is_fused_by_default_is_named_with_the_way_out(tmp_path):
    report = transpiled(dst=tmp_path / "out.onnx")
    said = "fused before the decision, which --fuse none leaves out: 1 BiasGelu, 1 SkipLayerNormalization; the result"
    assert [note for note in report.notes if note.startswith(said)]
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata["amp_transpiler.needs_onnxruntime"] == ", ".join(FUSED)


def test_nobody_hears_of_a_training_program_that_it_is_not_fused(monkeypatch):
    monkeypatch.setattr(fuse_module, "reason_against_fusions", lambda _: "it is a training program")
    report = transpiled()
    assert (report.fused, report.warnings) == ({}, ())
    assert transpiled(fuse="contrib").warnings == ("nothing fused: it is a training program",)


def test_nothing_is_said_of_what_an_older_release_lacks():
    report = transpiled(ort="1.26")
    assert report.fused == {"com.microsoft::BiasGelu": 1}
    assert not [note for note in report.notes if note.startswith("not fused")]


def test_a_model_without_parts_is_not_looked_at():
    assert not may_fuse(default_fusions("float16"), 20, {"MatMul", "Sigmoid", "Relu"})
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


def test_what_stays_float32_is_the_source(tmp_path):
    source = tmp_path / "model.onnx"
    onnx.save(model(20, BLOCK, SHAPES["open"]), source)
    for verify in (False, True):
        report = amp.transpile(source, tmp_path / "out.onnx", cache=False, verify=verify)
        assert report.kept_float32
        assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()
        assert report.predicted_ms[0] == pytest.approx(report.predicted_ms[1])


def test_fused_16_bits_are_chosen_beside_the_source_as_it_is():
    """The fused float32 program, which would be as fast, is nobody's file."""
    small = {"dims": {"batch": 2048, "length": 1}}
    report, before = (transpiled(prefer="balance", **small, fuse=choice) for choice in (None, "none"))
    assert report.predicted_ms[1] <= before.predicted_ms[1]


class Compared:
    """A conversion as `was_held_back` and `is_better_unfused` read it."""

    def __init__(self, report, *, word="verified", failure="", searched=False):
        self.program, self.conversion = report.program, Conversion(report)
        self.findings = Findings(Judgement(Verdict(word)), failure=failure)
        self.searched = searched


class Conversion:
    def __init__(self, report):
        self.assignment = self
        self.decisions = {row.name: Decision(row.precision) for row in report.decisions}


class Decision:
    def __init__(self, precision):
        self.precision = "low" if precision in FORMATS else "high"


def test_the_program_is_tried_as_it_was_where_limits_or_nothing_low_ask_for_it():
    low, high = transpiled(), transpiled(prefer="time", fuse="contrib")
    assert not was_held_back(Compared(low))
    assert was_held_back(Compared(low, failure="beyond the limit"))
    assert was_held_back(Compared(low, searched=True))
    assert was_held_back(Compared(high))


def test_the_better_one_is_chosen_by_verdict_then_by_time():
    fused, unfused, high = transpiled(), transpiled(fuse="none"), transpiled(prefer="time", fuse="none")
    by_time = dataclasses.replace(plan(ConversionOptions()).policy, objective="time")
    by_size = dataclasses.replace(by_time, objective="low")
    for policy in (by_time, by_size):
        assert not is_better_unfused(Compared(fused), Compared(unfused), policy)
        assert is_better_unfused(Compared(fused, failure="no"), Compared(unfused), policy)
        assert is_better_unfused(Compared(fused, word="estimated"), Compared(unfused), policy)
        assert not is_better_unfused(Compared(fused), Compared(unfused, word="estimated"), policy)
        assert is_better_unfused(Compared(high), Compared(high), policy)
    assert is_better_unfused(Compared(unfused), Compared(fused), by_time)  # the faster one, whatever it is called


def test_what_was_searched_for_is_compared_with_the_program_as_it_was(monkeypatch):
    asked = []
    monkeypatch.setattr(fused_or_not, "is_better_unfused", lambda *both: asked.append(both[:2]) or True)
    options = {"prefer": "size", "verify": True, "inputs": feeds()}
    assert transpiled(**options).fused == FUSED
    assert not asked
    report = transpiled(**options, tolerance=3e-4)
    (fused, unfused), *_ = asked
    assert fused.searched
    assert report.fused == {}
    assert "fuse" not in report.settings
    assert report.program is unfused.program
    monkeypatch.setattr(fused_or_not, "is_better_unfused", lambda *_: False)
    assert transpiled(**options, tolerance=3e-4).fused == FUSED
