"""What the user forces: nodes in lower precision (`include`) and the opset of the result (`opset`)."""

import re
import typing

import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.regions import REGION_KEY
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.systems import option_names

MODEL = """
<ir_version: 10, opset_import: ["": OPSET]>
net (float[2, 4] x, float[4] v, bool c) => (float[2, 4] y, float[2, 4] z)
<float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float big = {1e20}>
{
    [product] a = MatMul (x, w)
    [exp] b = Exp (a)
    [scale] s = Mul (b, big)
    [smax] p = Softmax <axis = 1> (s)
    [kind] q = Cast <to = 11> (p)
    [back] y = Cast <to = 1> (q)
    [shape] n = Shape (x)
    [branch] z = If (c) <
        then_branch = t () => (float[2, 4] t0) { [inner_exp] t0 = Exp (x) },
        else_branch = e () => (float[2, 4] e0) { [inner_neg] e0 = Neg (x) }>
}
"""


def model(opset=17, text=MODEL):
    return onnx.parser.parse_model(text.replace("OPSET", str(opset)))


def low(report):
    return {row.name for row in report.decisions if row.precision == "low"}


# Options -> nodes that are low at O1, where Exp and Softmax are black and Mul reads a constant beyond the range.
INCLUDED = {
    "nothing": ({}, {"product"}),
    "a black operator": ({"include": "^exp$"}, {"product", "exp"}),
    "a constant beyond the range": ({"include": "scale"}, {"product", "scale"}),
    "nodes with and without floats": ({"include": ["smax|shape|kind", "exp"]}, {"product", "smax", "exp", "inner_exp"}),
    "the body of a branch": ({"include": "branch"}, {"product", "inner_exp", "inner_neg"}),
    "against the user's own lists": (
        {
            "include": "^(exp|product)$",
            "amp_lists": amp.AutoMixedPrecisionLists(None, ["Exp"], ["a"]),
            "guard": "smax",
        },
        {"exp", "product"},
    ),
    "another policy": ({"include": "smax", "policy": "torch", "level": "auto"}, {"product", "smax"}),
    "no computing node near, at auto": (
        {"include": "inner_neg", "level": "auto", "disable_amp": "product"},
        {"inner_neg"},
    ),
}


@pytest.mark.parametrize(("options", "expected"), INCLUDED.values(), ids=INCLUDED)
def test_included_nodes_are_low_by_force(options, expected):
    report = amp.transpile(model(), verify=False, **{"level": "O1", **options})
    assert low(report) == expected
    forced = {row.name for row in report.decisions if "by force" in row.reason}
    assert forced == {
        name for name in expected if any(re.search(text, name) for text in _patterns(options)) or "inner" in name
    }
    onnx.checker.check_model(to_proto(report.program.model), full_check=True)


def _patterns(options):
    include = options.get("include", ())
    return [include] if isinstance(include, str) else include


def test_regions_of_force_are_not_kept_in_the_file():
    report = amp.transpile(model(), verify=False, level="O1", include="exp", disable_amp="smax")
    regions = {node.name: node.metadata_props.get(REGION_KEY) for node in report.program.model.graph}
    assert regions["exp"] is None
    assert regions["smax"] == "disable_amp"


def test_repairs_leave_forced_nodes_alone():
    text = """
    <ir_version: 10, opset_import: ["": 17]>
    net (float[1, 3] x) => (float[1, 3] y)
    <float[3, 3] w = {0.7, 0.3, 0.1, 0.3, 0.9, 0.1, 0.1, 0.7, 0.3}>
    { [first] a = MatMul (x, w) [second] b = MatMul (a, w) [third] y = MatMul (b, w) }
    """
    repaired = amp.transpile(model(text=text), tolerance=1e-9, prefer="size").repaired
    assert set(repaired) == {"first", "second", "third"}
    with pytest.raises(amp.CheckFailed) as failed:
        amp.transpile(model(text=text), include="second", tolerance=1e-9, prefer="size")
    precisions = {row.name: row.precision for row in failed.value.report.decisions}
    assert precisions["second"] == "low"
    assert "second" not in failed.value.report.repaired


REFUSED = {
    "schema": (
        "[size] y = NonMaxSuppression (b, s)",
        "(float[1, 4, 4] b, float[1, 1, 4] s) => (int64[N, 3] y)",
        {"include": "size"},
        ["'size' (NonMaxSuppression)", "NonMaxSuppression-11 does not permit float16"],
    ),
    "no schema": (
        "[own] y = my.domain.Own (x)",
        "(float[4] x) => (float[4] y)",
        {"include": "own"},
        ["'own' (my.domain::Own)", "no schema"],
    ),
    "no provider": (
        "[div] y = Reciprocal (x)",
        "(float[4, 4] x) => (float[4, 4] y)",
        {"include": "div", "dtype": "bfloat16"},
        ["'div' (Reciprocal)", "cannot be bfloat16", "no bfloat16 kernel for Reciprocal-13 on cuda"],
    ),
    "no float": (
        "[s] y = Shape (x)",
        "(float[4] x) => (int64[1] y)",
        {"include": "s"},
        ["matches no node with a float"],
    ),
    "no match": ("[s] y = Relu (x)", "(float[4] x) => (float[4] y)", {"include": "zz"}, ["'zz' matches no node"]),
    "a contradiction": (
        "[s] y = Relu (x)",
        "(float[4] x) => (float[4] y)",
        {"include": "s", "disable_amp": "s"},
        ["'s' (Relu)", "disable_amp"],
    ),
    "level O0": ("[s] y = Relu (x)", "(float[4] x) => (float[4] y)", {"include": "s", "level": "O0"}, ["include"]),
    "no pattern": ("[s] y = Relu (x)", "(float[4] x) => (float[4] y)", {"include": "("}, ["regular expression"]),
}


@pytest.mark.parametrize(("body", "interface", "options", "parts"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_forced_is_refused(body, interface, options, parts):
    text = f'<ir_version: 10, opset_import: ["": 17, "my.domain": 1]> net {interface} {{ {body} }}'
    with pytest.raises(OptionError) as error:
        amp.transpile(onnx.parser.parse_model(text), verify=False, **options, prefer="size")
    assert [part for part in parts if part not in str(error.value)] == []


def test_without_a_kernel_of_the_target_another_provider_runs_it():
    text = '<ir_version: 10, opset_import: ["": 17]> net (float[4, 4] x) => (float y) { [det] y = Det (x) }'
    report = amp.transpile(onnx.parser.parse_model(text), include="det", prefer="size")
    [row] = report.decisions
    assert row.precision == "low"
    assert "no float16 kernel for Det-11 on cuda: another provider runs it" in row.reason
    assert report.verdict_word == "plausible", report.verdict


# ---- opset ----

SIMPLE = """
<ir_version: 8, opset_import: ["": OPSET]>
net (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y)
{ [pool] a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) [relu] y = Relu (a) }
"""
LAYER_NORM = """
<ir_version: 8, opset_import: ["": OPSET]>
net (float[2, 8] x) => (float[2, 8] y)
<float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}> { [norm] y = LayerNormalization (x, s) }
"""


@pytest.mark.parametrize(
    ("text", "source", "asked", "operators"),
    [
        (SIMPLE, 13, 13, {"MaxPool", "Relu"}),
        (SIMPLE, 13, 17, {"MaxPool", "Relu"}),
        (SIMPLE, 13, 26, None),  # MaxPool is written in operators that keep their kernels
        (SIMPLE, 17, 13, {"MaxPool", "Relu"}),
        (SIMPLE, 26, 13, {"MaxPool", "Relu"}),
        (LAYER_NORM, 17, 21, {"LayerNormalization"}),
        (LAYER_NORM, 17, 16, None),  # written out by its definition
    ],
)
def test_the_result_has_the_opset_asked_for(text, source, asked, operators):
    report = amp.transpile(model(source, text), opset=asked, prefer="size")
    assert report.opset == (source, asked)
    assert report.program.model.graph.opset_imports[""] == asked
    assert report.verdict_word == "plausible", report.verdict
    kinds = {node.op_type for node in report.program.model.graph} - {"Cast"}
    assert kinds == operators or (operators is None and "LayerNormalization" not in kinds)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"opset": 5}, ["opset is 5", "7 to 26"]),
        ({"opset": 27}, ["opset is 27", "7 to 26"]),
        ({"opset": "17"}, ["'17'"]),
        ({"opset": 12, "dtype": "bfloat16", "keep_io_types": False}, ["opset 12 has no bfloat16", "ask for 13"]),
        ({"opset": 17, "level": "O0"}, ["level O0", "opset 17"]),
        ({"opset": 17, "preset": "mp0"}, ["mp0", "opset 17"]),
    ],
)
def test_an_opset_that_does_not_do_is_refused(options, parts):
    with pytest.raises(OptionError) as error:
        amp.transpile(model(13, SIMPLE), verify=False, **options, prefer="size")
    assert [part for part in parts if part not in str(error.value)] == []


def test_a_node_that_needs_its_opset_is_named():
    grid = """<ir_version: 8, opset_import: ["": 16]> net (float[1, 1, 4, 4] x, float[1, 2, 2, 2] g) =>
    (float[1, 1, 2, 2] y) { [sample] y = GridSample (x, g) }"""
    with pytest.raises(OptionError, match=r"opset 13 does not do for .*'sample' .GridSample."):
        amp.transpile(onnx.parser.parse_model(grid), verify=False, opset=13, prefer="size")


# ---- tolerance and types ----


@pytest.mark.parametrize(("given", "expected"), [("1%", 0.01), ("0.5 %", 0.005), ("0.02", 0.02), (0.5, 0.5)])
def test_a_tolerance_may_be_text(given, expected, monkeypatch):
    seen = {}

    def stop(programs, policy, *_):
        seen["tolerance"] = policy.limits.tolerance
        raise OptionError("enough")

    monkeypatch.setattr("amp_transpiler.alternatives.best_conversion.convert_and_compare", stop)
    with pytest.raises(OptionError, match="enough"):
        amp.transpile(model(13, SIMPLE), tolerance=given, prefer="size")
    assert seen["tolerance"] == pytest.approx(expected)


@pytest.mark.parametrize("given", ["one percent", "%", "-1%", -0.5, float("nan"), True, [0.1], "nan"])
def test_a_tolerance_that_is_none_is_refused(given):
    with pytest.raises(OptionError, match=r"tolerance is .*expected a fraction of at least 0"):
        amp.transpile(model(13, SIMPLE), tolerance=given, prefer="size")


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("level", option_names.LevelName),
        ("target", option_names.TargetName),
        ("policy", option_names.PolicyName),
        ("preset", option_names.PresetName),
    ],
)
def test_the_literal_types_are_the_names_in_the_table(option, names):
    [row] = (row for row in OPTIONS if row.name == option)
    assert list(typing.get_args(names)) == list(row.values)
