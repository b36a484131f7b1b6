"""What every system shares, and what each may say about it: folding, constants behind Identity, biases, the opset."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer
from amp_transpiler.errors import OptionError
from amp_transpiler.precision.casting_rules import find_rule
from tests import support
from tests.support import array, parse

POLICIES = ("paddle", "torch", "raf", "mxnet")
NORM = {name: array(8, seed=i, low=0.5) for i, name in enumerate(("scale", "shift", "mean", "var"))}
NETWORK = """(float[1,4,8,8] x) => (float[1,8,8,8] y) {
    [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w) [norm] n = BatchNormalization (c, scale, shift, mean, var)
    [relu] y = Relu (n)
}"""


def network():
    return parse(NETWORK, w=array(8, 4, 3, 3, scale=0.2), **NORM)


def operators(program):
    return [node.op_type for node in support.nodes(program) if node.op_type != "Cast"]


# ---- folding ----


def test_raf_folds_a_normalization_whose_parameters_could_not_stay_float32():
    assert operators(amp.transpile(network(), policy="raf").program) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    "lists",
    [
        {"custom_black_list": ["BatchNormalization"]},
        {"custom_black_list": ["Conv"]},
        {"custom_black_varnames": ["c"]},
        {"custom_black_varnames": ["scale"]},
    ],
    ids=str,
)
def test_what_the_user_lists_is_not_folded(lists):
    report = amp.transpile(network(), policy="raf", amp_lists=amp.AutoMixedPrecisionLists(**lists))
    assert operators(report.program) == ["Conv", "BatchNormalization", "Relu"]


@pytest.mark.parametrize("operator", ["Conv", "BatchNormalization"])
def test_what_the_user_has_a_rule_for_is_not_folded(operator):
    asked = []

    def rule(node, inputs, low_dtype):
        asked.append(len(inputs))
        return [None] * len(inputs)

    with amp.CustomTypeHint({operator: rule}):
        program = amp.autocast(network())
    assert operators(program) == ["Conv", "BatchNormalization", "Relu"]
    assert set(asked) == {2 if operator == "Conv" else 5}, "the rule sees the node as it was written"


def test_a_preset_of_products_folds_nothing():
    assert operators(amp.transpile(network(), preset="mp1").program) == ["Conv", "BatchNormalization", "Relu"]


# ---- constants behind Identity ----


@pytest.mark.parametrize("policy", POLICIES)
def test_a_constant_behind_identity_is_a_constant(policy):
    """Exporters write it so where layers share a parameter: all layers are decided alike, and weights are low once."""
    graph = """(float[2,4] x) => (float[2,4] y) {
        w2 = Identity (w) b2 = Identity (b)
        m1 = MatMul (x, w) [first] a1 = Add (m1, b) r = Relu (a1)
        m2 = MatMul (r, w2) [second] y = Add (m2, b2)
    }"""
    report = amp.transpile(parse(graph, w=array(4, 4), b=array(4)), policy=policy, level="auto")
    found = support.decisions(report)
    assert found["first"] == found["second"] == "low"
    assert "Identity" not in operators(report.program)
    assert [name for name, _, to in support.casts(report.program) if to != "FLOAT"] == ["x"]


def test_an_identity_that_is_an_output_stays():
    graph = "(float[2,4] x) => (float[2,4] y, float[4,4] z) { y = MatMul (x, w) z = Identity (w) }"
    program = amp.transpile(parse(graph, w=array(4, 4))).program
    assert operators(program) == ["MatMul", "Identity"]
    support.assert_valid(program)


# ---- linear layers ----


@pytest.mark.parametrize(
    ("policy", "expected"), [("torch", "low"), ("mxnet", "low"), ("raf", "low"), ("paddle", "low")]
)
def test_the_bias_of_a_linear_layer_goes_with_the_product(policy, expected):
    graph = "(float[2,4] x) => (float[2,4] y) { m = MatMul (x, w) [bias] a = Add (m, b) y = Exp (a) }"
    report = amp.transpile(parse(graph, w=array(4, 4), b=array(4)), policy=policy, level="auto")
    assert support.decisions(report)["bias"] == expected


def test_mxnet_heeds_a_list_that_names_add():
    graph = "(float[2,4] x) => (float[2,4] y) { m = MatMul (x, w) [bias] y = Add (m, b) }"
    program = amp.convert_model(parse(graph, w=array(4, 4), b=array(4)), fp32_ops=["Add"])
    assert support.dtypes(program, "Add") == ["FLOAT"]


# ---- the opset ----


@pytest.mark.parametrize(("options", "opset"), [({"preset": "mp1"}, 18), ({"preset": "mp4"}, 22), ({}, 22)])
def test_the_opset_is_raised_only_for_what_may_become_low(options, opset):
    graph = "(float[1,4,8,8] x) => (float[1,8,6,6] y) { c = Conv (x, w) y = Relu (c) }"
    report = amp.transpile(parse(graph, w=array(8, 4, 3, 3)), dtype="bfloat16", **options)
    assert report.opset == (18, opset)


# ---- the default preset and numbers ----


def test_a_single_number_that_an_exporter_casts_is_no_conversion():
    graph = """(float[2,4] x) => (float[2,4] y) {
        s = Shape (x) i = Gather (s, one) f = Cast <to = 1> (i) r = Sqrt (f) c = Cast <to = 1> (r)
        [scaled] d = Div (x, c) [last] y = Tanh (d)
    }"""
    report = amp.transpile(parse(graph, one=np.array(1)), preset="default")
    assert support.decisions(report)["last"] == "low"


def test_the_reason_names_the_conversion():
    graph = "(float[2,4] x) => (float[2,4] y) { r = Relu (x) [to_float] c = Cast <to = 1> (r) [last] y = Tanh (c) }"
    report = amp.transpile(parse(graph), preset="default")
    assert "'to_float'" in support.reasons(report)["last"]


# ---- what is refused is refused before anything changes ----


@pytest.mark.parametrize(
    "options", [{"preset": 4}, {"mixed_ops": 3}, {"mixed_ops": ","}, {"mixed_ops": [","]}], ids=str
)
def test_what_is_no_name_is_one_clear_error(options):
    with pytest.raises(OptionError, match=r"preset|mixed"):
        amp.transpile(network(), **options)


def test_decorate_that_is_refused_leaves_the_optimizer_alone():
    sgd = optimizer.SGD(0.1)
    before = sgd.multi_precision
    with pytest.raises(OptionError):
        amp.decorate(sgd, policy="torch", level="O2", fp32_params=True)
    assert sgd.multi_precision == before


def test_type_hints_may_end_in_another_order_than_they_nest():
    def keep(node, inputs, low_dtype):
        return [None] * len(inputs)

    outer, inner = amp.CustomTypeHint({"Add": keep}), amp.CustomTypeHint({"Mul": keep})
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert find_rule("", "Add", 18) is None
    assert find_rule("", "Mul", 18) is keep
    inner.__exit__(None, None, None)
    assert find_rule("", "Mul", 18) is None
