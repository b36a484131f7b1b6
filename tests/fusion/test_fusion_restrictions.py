"""Fusions where the user has said something about single nodes, or where the target lacks a kernel."""

import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion.fuse import Fuse
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.regions import DISABLE_AMP, mark_region, region_of
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.precision.user_lists import UserLists
from tests.fusion import attention_forms
from tests.fusion.test_fusion import BLOCK, NORM, SHAPES, feeds, model

WRITTEN = "com.microsoft::"
BIAS_GELU, SKIP = f"{WRITTEN}BiasGelu", f"{WRITTEN}SkipLayerNormalization"
ERF_GELU = "a = Mul (x, inverse) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)"
TORN = "not fused, since a region holds only some of the nodes: "
NAMED = "not fused, since the lists name "
MISSING = "not fused, since ONNX Runtime 1.26 has no sound float16 kernel for it: "


def transpiled(body, opset=20, **options):
    aim = {} if options.get("level") == "O2" else {"prefer": "size"}
    settings = {"verify": False, "cache": False, "fuse": "contrib", **aim, **options}
    return amp.transpile(model(opset, body, SHAPES["open"]), **settings)


def said(report):
    return [note for note in report.notes if note.startswith("not fused")]


# what is in a region: fused operators, what the report says
REGIONS = {
    "a GELU without its bias": ({"disable_amp": "^h$"}, {SKIP: 1}, [f"{TORN}1 BiasGelu"]),
    "a bias without its GELU": ({"guard": "^a$"}, {SKIP: 1}, [f"{TORN}1 BiasGelu"]),
    "GELU and bias": ({"disable_amp": "^[ah]$"}, {SKIP: 1, BIAS_GELU: 1}, []),
    "a sum": ({"include": "^s$"}, {BIAS_GELU: 1}, [f"{TORN}1 SkipLayerNormalization"]),
    "a sum and what normalises it, without the Gemm before": (
        {"disable_amp": "^[sn]$"},
        {SKIP: 1, BIAS_GELU: 1},
        [],
    ),
    "something else": ({"disable_amp": "^y$"}, {SKIP: 1, BIAS_GELU: 1}, []),
    "everything": ({"disable_amp": "."}, {SKIP: 1, BIAS_GELU: 1}, []),
}


@pytest.mark.parametrize("name", REGIONS)
def test_only_what_a_region_tears_apart_stays(name):
    options, fused, notes = REGIONS[name]
    report = transpiled(BLOCK, **options)
    assert report.fused == fused
    assert said(report) == notes
    assert not any("fused" in warning for warning in report.warnings)


def test_a_fused_operator_is_where_its_nodes_were():
    report = transpiled(BLOCK, disable_amp="^[ah]$")
    precisions = {row.op: (row.precision, row.reason) for row in report.decisions}
    assert precisions[BIAS_GELU][0] == "float32"
    assert "disable_amp" in precisions[BIAS_GELU][1]
    assert precisions[SKIP][0] == "float16"


def test_a_bias_of_another_region_stays_where_it_is():
    report = transpiled(BLOCK, disable_amp="^[sn]$")
    (skip,) = (node for node in report.program.model.graph if operator_name(node) == SKIP)
    assert len(skip.inputs) == 4  # no bias
    (gemm,) = (node for node in report.program.model.graph if node.op_type == "Gemm")
    assert len(gemm.inputs) == 3


def test_regions_are_heeded_and_the_result_is_compared():
    report = transpiled(BLOCK, disable_amp="^[ah]$", verify=True, inputs=feeds())
    assert (report.fused, report.verdict_word) == ({SKIP: 1, BIAS_GELU: 1}, "verified")


# what the lists name: body, opset, lists, fused operators, what the report says
LISTS = {
    "part of a written-out GELU": (ERF_GELU, 18, {"black": "Erf"}, {}, f"{NAMED}Erf: 1 Gelu"),
    "a white part": (ERF_GELU, 18, {"white": "Erf"}, {}, f"{NAMED}Erf: 1 Gelu"),
    "what GELU becomes": (BLOCK, 20, {"black": "Gelu"}, {SKIP: 1}, f"{NAMED}Gelu: 1 BiasGelu"),
    "a normalisation": (
        BLOCK,
        20,
        {"black": "LayerNormalization"},
        {BIAS_GELU: 1},
        f"{NAMED}LayerNormalization: 1 SkipLayerNormalization",
    ),
    "sums": (BLOCK, 20, {"black": "Add"}, {}, f"{NAMED}Add: 1 SkipLayerNormalization, 1 BiasGelu"),
    "a Gemm, whose bias is left to it": (BLOCK, 20, {"black": "Gemm"}, {SKIP: 1, BIAS_GELU: 1}, ""),
    "the fused operator": (BLOCK, 20, {"black": BIAS_GELU}, {SKIP: 1, BIAS_GELU: 1}, ""),
    "nothing of it": (BLOCK, 20, {"black": "Conv", "white": "MatMul"}, {SKIP: 1, BIAS_GELU: 1}, ""),
    "a value within": (BLOCK, 20, {"values": "a"}, {SKIP: 1}, f"{NAMED}a: 1 BiasGelu"),
    "two things": (
        BLOCK,
        20,
        {"black": "Gelu", "values": "n"},
        {},
        f"{NAMED}Gelu, n: 1 SkipLayerNormalization, 1 BiasGelu",
    ),
}


def lists(black="", white="", values=""):
    return UserLists(*(frozenset({name} if name else ()) for name in (white, black, values)))


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("name", LISTS)
def test_what_the_lists_name_stays_for_them_to_decide(name, level):
    body, opset, names, fused, note = LISTS[name]
    report = transpiled(body, opset, amp_lists=lists(**names), level=level)
    assert report.fused == fused
    assert said(report) == ([note] if note else [])


def test_the_lists_decide_about_what_was_not_fused():
    report = transpiled(BLOCK, amp_lists=lists(black="LayerNormalization"))
    assert {row.precision for row in report.decisions if row.op == "LayerNormalization"} == {"float32"}


# body, opset -> the fusions that ONNX Runtime 1.26 has no sound kernel for, of those that the model has nodes for
KERNELS = {
    "a sum": (f"s = Add (x, z) y = {NORM}", 18, "SkipLayerNormalization"),
    "an RMS norm of a sum": (
        "s = Add (x, z) n = RMSNormalization (s, scale) y = Add (n, s)",
        23,
        "SkipSimplifiedLayerNormalization",
    ),
    "no sum": (f"s = Relu (x) y = {NORM}", 18, ""),
    "a GELU": (ERF_GELU, 18, ""),
}


@pytest.mark.parametrize("name", KERNELS)
def test_only_what_the_model_has_nodes_for_is_said_to_have_no_kernel(name):
    body, opset, missing = KERNELS[name]
    report = transpiled(body, opset, ort="1.26")
    assert said(report) == ([f"{MISSING}{missing}"] if missing else [])


def attention(**restrictions):
    body, operator = attention_forms.FORMS["slices of one product"]
    program = plain_copy(amp.load(attention_forms.model(body)))
    return program, operator, Restrictions(restrictions.pop("missing", ()), lists(**restrictions))


# what is said -> is the attention fused
ATTENTION = {
    "nothing": ({}, True),
    "its softmax": ({"black": "Softmax"}, False),
    "its products": ({"white": "MatMul"}, False),
    "a slice": ({"black": "Slice"}, False),
    "a value of it": ({"values": "s1"}, False),
    "something else": ({"black": "Conv"}, True),
    "no kernel": ({"missing": ("Attention",)}, False),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_not_fused_over_what_was_said(name):
    options, is_fused = ATTENTION[name]
    program, operator, restrictions = attention(**options)
    run_pass(Fuse(["Attention"], restrictions), program.model)
    assert (operator in {node.op_type for node in program.model.graph}) is is_fused
    refusals = restrictions.refusals
    assert bool(refusals.named or refusals.missing) is not is_fused


# which nodes of an attention are in a region -> is it fused
PARTS = {"^s0$": False, "^g0$": False, "^p$": False, "^y$": True, ".": True}


@pytest.mark.parametrize("nodes", PARTS)
def test_attention_is_fused_if_a_region_holds_all_of_it_or_nothing(nodes):
    body, operator = attention_forms.FORMS["slices of one product"]
    proto = attention_forms.model(body)
    mark_region(proto, DISABLE_AMP, nodes=nodes)
    program = plain_copy(amp.load(proto))
    run_pass(Fuse(["Attention"]), program.model)
    fused = [node for node in program.model.graph if node.op_type == operator]
    assert bool(fused) is PARTS[nodes]
    assert all(region_of(node) == ({DISABLE_AMP} if nodes == "." else frozenset()) for node in fused)
