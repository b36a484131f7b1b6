"""Attention as ONNX's own operator: where a fused kernel takes it, with the same numbers, at the opset that has it."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion import operand_products, standard_attention
from amp_transpiler.fusion.attention_prices import is_cheaper_as_operator
from amp_transpiler.fusion.fuse import Fuse
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.ops.fusions import FUSIONS
from amp_transpiler.passes.manager import run_pass
from tests.fusion import test_attention_layouts as layouts
from tests.fusion.attention_forms import (
    ALLOWED,
    BOTH_SCALED,
    CONDITION,
    FORMS,
    GUARDED,
    MIX,
    NEWER,
    OTHERS,
    SCORES,
    SEPARATE,
    TURNED,
    WEIGHTS,
    counted,
    distance,
    feeds,
    model,
)
from tests.support import array, run

NAME = "ai.onnx::Attention"
SIZES = {"b": 2, "l": 8}


@pytest.fixture
def small_heads(monkeypatch):
    """Let heads of 4, which the forms have, count as those that a fused kernel takes and the price list prefers."""
    monkeypatch.setattr(standard_attention, "_HEAD_UNIT", 4)
    monkeypatch.setattr(standard_attention, "is_cheaper_as_operator", lambda *_, **__: True)


def written(proto, dims=SIZES):
    program = plain_copy(amp.load(proto))
    result = run_pass(Fuse([NAME], dims=dims), program.model)
    return program, result


SAME = {"a bias beside the mask"}  # a summand of which it is not known which scores count


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("case", ["padding", "a text of padding alone", "other sizes"])
@pytest.mark.parametrize("form", [*FORMS, *NEWER])
def test_attention_computes_the_same(form, case):
    body, _ = {**FORMS, **NEWER}[form]
    proto = model(body, opset=23)
    program, result = written(proto)
    assert result.count == (form not in SAME)
    inputs = feeds(3, 4) if case == "other sizes" else feeds()
    if case == "a text of padding alone":
        inputs["m"][1] = 0
    expected, computed = run(proto, inputs)["y"], run(program, inputs)["y"]
    assert np.isfinite(expected).all()
    assert distance(expected, computed) < 1e-6


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("form", OTHERS)
def test_what_is_not_attention_stays(form):
    body, constants = OTHERS[form]
    assert written(model(body, **{"opset": 23, **constants}))[1].modified is False


# Of torch.nn.MultiheadAttention's layouts with one sample, where masks choose scores and heads can be followed to rows.
ONE_SAMPLE = {
    "packed, four axes",
    "packed, three axes",
    "four axes, padding",
    "three axes, padding",
    "a result that is read as batch first",
    "a result that is an output",
    "projections that are no constants",
    "cross, four axes",
    "cross, three axes",
    "one head that is never split",
    "a Dropout outside training",
}
SEVERAL_SAMPLES = {"one head that is never split"}  # the others read rows by positions


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("form", layouts.FORMS)
def test_rows_by_positions_are_those_of_one_sample(form, batch):
    proto = layouts.model(layouts.FORMS[form][0])
    proto.opset_import[0].version = 23
    for dim in (dim for info in proto.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param == "b"):
        dim.dim_value = batch
    program, result = written(proto, {"l": 8, "s": 8})
    assert result.count == (form in (ONE_SAMPLE if batch == 1 else SEVERAL_SAMPLES))
    inputs = {name: values if name == "a" else values[:batch] for name, values in layouts.feeds().items()}
    assert distance(run(proto, inputs)["y"], run(program, inputs)["y"]) < 1e-6
    onnx.checker.check_model(program.to_onnx(), full_check=True)


WITH_BIAS = "y0 = MatMul(o, wo) y = Add(y0, bo)"
PLAIN = f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} {WITH_BIAS}"
BY_INFINITY = f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} {GUARDED} {WITH_BIAS}"
UNMASKED = f"{SEPARATE} {TURNED} s0 = MatMul(q, k) s = Div(s0, two) {MIX} {WITH_BIAS}"
# name -> body, MatMuls, additions of biases, Wheres of what is left
LEFT = {
    "no mask": (UNMASKED, 4, 2, 0),
    "rows without a score are averages": (PLAIN, 4, 2, 3),  # the mask, which rows have scores, the queries
    "rows without a score are 0": (BY_INFINITY, 4, 3, 1),  # values keep their bias
    "no bias behind the result": (UNMASKED.replace(WITH_BIAS, "y = MatMul(o, wo)"), 4, 2, 0),
}


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    body, *expected = LEFT[name]
    program, result = written(model(body, opset=23))
    after = counted(program)
    adds = [node for node in program.model.graph if node.op_type == "Add"]
    biases = sum(any(constant_array(value) is not None for value in node.inputs) for node in adds)
    assert result.count == after["Attention"] == 1
    assert [after["MatMul"], biases, after["Where"]] == expected
    assert after["Transpose"] == after["Softmax"] == after["IsNaN"] == 0


@pytest.mark.usefixtures("small_heads")
def test_the_bias_of_values_joins_the_ones_behind_the_result_in_either_form():
    for body in (PLAIN, FORMS["an output in two dimensions"][0]):
        program, _ = written(model(body, opset=23))
        arrays = [constant_array(value) for node in program.model.graph for value in node.inputs]
        sums = [each for each in arrays if each is not None and each.shape == (8,)]
        expected = WEIGHTS["bo"] + WEIGHTS["bv"].astype(np.float64) @ WEIGHTS["wo"]
        moves = "bo" in body
        assert any(np.allclose(each, expected, atol=1e-7) for each in sums) is moves
        assert any(np.array_equal(each, WEIGHTS["bv"]) for each in sums) is not moves


@pytest.mark.parametrize("joins", [True, False])
def test_whether_products_are_joined_is_asked_of_the_price_list(joins, monkeypatch):
    monkeypatch.setattr(operand_products, "is_cheaper_joined", lambda *_: joins)
    proto, inputs = wide(PLAIN, 2, 16, opset=23), wide_feeds()
    program, _ = written(proto)
    assert (counted(program)["MatMul"], counted(program)["Split"]) == ((2, 1) if joins else (4, 0))
    assert distance(run(proto, inputs)["y"], run(program, inputs)["y"]) < 1e-6


def wide(body, batch="b", length="l", *, heads=(0, 0, 2, 8), width=16, opset=17):
    """Return a model of heads of 8, unless others are named, with sizes that may be known."""
    weights = {
        **{f"w{name}": array(width, width, seed=index, scale=0.5) for index, name in enumerate("qkvo")},
        **{f"b{name}": array(width, seed=index + 9, scale=0.2) for index, name in enumerate("qkvo")},
        "packed": array(width, 3 * width, seed=7, scale=0.5),
        "packed_bias": array(3 * width, seed=8, scale=0.2),
        "heads": np.array(heads),
        "whole": np.array([0, 0, width]),
    }
    sides = f"{batch},{length}"
    header = f"(float[{sides},{width}] x, float[{sides}] m) => (float[{sides},{width}] y)"
    return model(body, opset, header, **weights)


def wide_feeds():
    """Return inputs for heads of 8, whose second text is padding alone."""
    mask = feeds(2, 16)["m"]
    mask[1] = 0
    return {"x": array(2, 16, 16, seed=5), "m": mask}


OPERATOR, PIECES = {"Attention": 1}, {"com.microsoft::FusedMatMul": 3}
UNKNOWN = PLAIN.replace(
    "mask = Where(c, zero, lowest)", "cf = Cast<to=1>(c) off = Sub(unit, cf) mask = Mul(off, lowest)"
)
# ONNX does not follow the width through what computes it.
BY_SHAPE = (
    "g0 = MatMul(x, packed) g = Add(g0, packed_bias)"
    " sh = Shape<start=2>(g) wide = Div(sh, three) twice = Add(wide, wide)"
    " qa = Slice(g, first, wide, third) ka = Slice(g, wide, twice, third) va = Slice(g, twice, sh, third)"
    f" {UNMASKED.replace(SEPARATE, '')}"
)
# name -> body, sizes, options, what is fused, the result's opset
DEFAULTS = {
    "known sizes": (PLAIN, (2, 16), {}, OPERATOR, 23),
    "bfloat16": (PLAIN, (2, 16), {"dtype": "bfloat16"}, OPERATOR, 23),
    "level auto": (PLAIN, (2, 16), {"level": "auto", "prefer": "size"}, OPERATOR, 23),
    "widths that are computed": (BY_SHAPE, ("b", "l"), {}, OPERATOR, 23),
    "one sample": (PLAIN, (1, 16), {}, OPERATOR, 23),
    "no mask, open sizes": (UNMASKED, ("b", "l"), {}, OPERATOR, 23),
    "a mask of open sizes": (PLAIN, ("b", "l"), {}, {"com.microsoft::FusedMatMul": 2}, 17),
    "a mask of sizes that the user names": (PLAIN, ("b", "l"), {"dims": {"l": 32}}, OPERATOR, 23),
    "a mask of keys of no multiple of 4": (PLAIN, (2, 15), {}, PIECES, 17),
    "a mask that is not known to choose scores": (UNKNOWN, (2, 16), {}, PIECES, 17),
    "the user's opset": (PLAIN, (2, 16), {"opset": 17}, PIECES, 17),
    "the user's opset, which has it": (PLAIN, (2, 16), {"opset": 24}, OPERATOR, 24),
    "an older release": (PLAIN, (2, 16), {"ort": "1.30"}, PIECES, 17),
    "left out": (PLAIN, (2, 16), {"fuse": f"contrib,-Attention,-{NAME}"}, PIECES, 17),
    "standard operators": (PLAIN, (2, 16), {"fuse": "standard"}, OPERATOR, 23),
    "ONNX Runtime's operators": (PLAIN, (2, 16), {"fuse": "contrib"}, {"com.microsoft::Attention": 1}, 17),
    "both providers": (PLAIN, (2, 16), {"target": "any", "fuse": "standard"}, {}, 17),
    "TensorRT": (PLAIN, (2, 16), {"target": "tensorrt", "fuse": "standard", "opset": 23}, {}, 23),
    "WebGPU": (PLAIN, (2, 16), {"target": "webgpu", "fuse": "standard", "opset": 23}, {}, 23),
    "the CPU": (PLAIN, (2, 16), {"target": "cpu", "fuse": "standard"}, {}, 17),
    "the CPU at the opset": (PLAIN, (2, 16), {"target": "cpu", "fuse": "standard", "opset": 23}, OPERATOR, 23),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_where_it_is_done(name):
    body, sizes, options, fused, opset = DEFAULTS[name]
    proto = wide(body, *sizes)
    report = amp.transpile(proto, **{"level": "O2", "verify": False, "cache": False, **options})
    assert report.fused == fused
    result = report.program.to_onnx()
    assert {each.domain: each.version for each in result.opset_import}[""] == opset
    told = [note for note in report.notes if "-> 23: 1" in note or "not fused" in note]
    assert told == (
        ["opset 17 -> 23: 1 attention is one operator there"] if opset == 23 and "opset" not in options else []
    )
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("form", [name for name in NEWER if name.startswith("one operator")])
def test_the_operator_itself_is_written_by_rows(form):
    report = amp.transpile(wide(NEWER[form][0], 2, 16, opset=23), level="O2", verify=False, cache=False)
    assert report.fused == OPERATOR
    assert counted(report.program)["Transpose"] == 0
    assert "contrib would write" not in " ".join(report.notes)
    onnx.checker.check_model(report.program.to_onnx(), full_check=True)


# body, sizes, options -> what the note about attention in pieces says of lengths; None without the note
OFFERS = {
    "open": (PLAIN, ("b", "l"), {}, "; ONNX's is one where runs have a multiple of 4 keys, as with --dim l=32"),
    "named": (PLAIN, ("b", "l"), {"dims": {"l": 32}}, None),
    "named, and no multiple of 4": (PLAIN, ("b", "l"), {"dims": {"l": 30}}, ""),
    "known": (PLAIN, (2, 15), {}, ""),
    "a mask that is not known to choose scores": (UNKNOWN, ("b", "l"), {}, ""),
}


@pytest.mark.parametrize("name", OFFERS)
def test_who_may_name_a_length_is_told(name):
    body, sizes, options, expected = OFFERS[name]
    report = amp.transpile(wide(body, *sizes), level="O2", verify=False, cache=False, **options)
    told = [note.partition("so it is no default")[2] for note in report.notes if "--fuse contrib would" in note]
    assert told == ([] if expected is None else [expected])


def test_the_table_of_fusions_has_the_opset_of_the_operator():
    assert [fusion.opset for fusion in FUSIONS if fusion.name == NAME] == [standard_attention.FIRST_OPSET]


def test_heads_that_no_kernel_takes_stay_in_pieces():
    for heads, width in (([0, 0, 4, 4], 16), ([0, 0, 1, 264], 264)):
        report = amp.transpile(
            wide(PLAIN, 2, 16, heads=heads, width=width), level="O2", verify=False, cache=False, fuse="standard"
        )
        assert report.fused == {}


def test_the_opset_stays_where_a_node_would_lose_its_kernel():
    pooled = f"{PLAIN.replace('y = Add', 'ya = Add')} y1 = MaxPool<kernel_shape=[1]>(ya) y = Identity(y1)"
    report = amp.transpile(wide(pooled, 2, 16), level="O2", dtype="bfloat16", verify=False, cache=False)
    assert report.fused == PIECES


def test_the_opset_stays_where_the_lists_keep_attention_as_it_is():
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["Softmax"])
    report = amp.transpile(wide(PLAIN, 2, 16), level="O2", amp_lists=lists, verify=False, cache=False)
    assert report.fused == {}
    assert report.program.to_onnx().opset_import[0].version == 17


def test_the_price_list_decides():
    assert is_cheaper_as_operator(1, 12, 128, 128, 64, masked=True, chosen=True)
    assert not is_cheaper_as_operator(1, 12, 197, 197, 64, masked=True, chosen=False)  # three products' kernels


def test_a_mask_that_the_list_finds_slow_stays_in_pieces(monkeypatch):
    monkeypatch.setattr(standard_attention, "is_cheaper_as_operator", lambda *_, **__: False)
    report = amp.transpile(wide(PLAIN, 2, 16), level="O2", verify=False, cache=False)
    assert report.fused == PIECES


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("body", [PLAIN, BY_INFINITY, UNMASKED], ids=["averages", "zeros", "no mask"])
def test_low_numbers_are_as_near_as_those_of_pieces(body, low):
    proto, inputs = wide(body, 2, 16), wide_feeds()
    errors = []
    for choice in ("standard", "none"):
        report = amp.transpile(proto, level="O2", dtype=low, inputs=inputs, cache=False, fuse=choice)
        assert report.fused == (OPERATOR if choice == "standard" else {})
        errors.append(max(row.relative for row in report.outputs.values()))
    assert errors[0] < max(1.2 * errors[1], {"float16": 2e-3, "bfloat16": 2e-2}[low])
