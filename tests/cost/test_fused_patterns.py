"""Operators that exporters write out are decided as one, and their fusion is not broken."""

import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.cost.fused_patterns import PATTERNS, matches
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import in_order
from tests import support
from tests.fusions import FUSIONS, model

BEFORE = {  # nodes that level auto kept in float32 before it knew the whole
    "GELU by tanh and a power": ("p",),
    "a mask that is added": ("mk", "sm", "pr"),
    "a mask by a product": ("i", "mk", "sm", "pr"),
    "a mask that replaces": ("sm", "pr"),
}
WHOLES = {
    "GELU by erf, halved last": "a GELU",
    "GELU by erf, halved first": "a GELU",
    "GELU by tanh and a power": "a tanh GELU",
    "GELU by tanh, factored": "a tanh GELU",
    "GELU by tanh and products": "a tanh GELU",
    "SiLU": "a SiLU",
    "QuickGelu": "a SiLU",
}


@pytest.mark.parametrize("name", FUSIONS)
def test_a_form_is_low_but_for_what_its_fusion_takes_in_float32(name):
    report = amp.transpile(model(name), verify=False, prefer="size", fuse="none")  # data might overrule the rules
    high = {node for node, precision in support.decisions(report).items() if precision == "high"}
    assert high == set(FUSIONS[name].high)
    assert not high & set(BEFORE.get(name, ()))


def found(name, *changes):
    proto = model(name)
    for change in changes:
        change(proto)
    program = ir.from_proto(proto)
    propagate_types(program)
    return list(matches(in_order(program.graph)))


@pytest.mark.parametrize("name", FUSIONS)
def test_which_forms_are_one_operator(name):
    assert [match.pattern.name for match in found(name)] == [WHOLES[name] for _ in range(name in WHOLES)]


def test_every_row_has_a_form_here():
    assert {pattern.name for pattern in PATTERNS} == set(WHOLES.values())


def _read_inside(proto):
    """Make a node in the middle an output of the model."""
    proto.graph.output.add(name="p").type.tensor_type.elem_type = 1


def _swap(proto):
    for node in proto.graph.node:
        if node.op_type in ("Add", "Mul"):
            node.input[:] = node.input[::-1]


def _another_value(proto):
    next(node for node in proto.graph.node if node.name == "m").input[0] = "x"


def test_sums_and_products_match_in_either_order():
    assert len(found("GELU by tanh and a power", _swap)) == 1


@pytest.mark.parametrize("change", [_read_inside, _another_value])
def test_what_is_read_in_the_middle_or_takes_another_value_is_none(change):
    assert not found("GELU by tanh and a power", change)


def test_two_of_them_share_no_node():
    pairs = [match.nodes for name in WHOLES for match in found(name)]
    assert all(len(nodes) > 1 for nodes in pairs)


@pytest.mark.parametrize("name", ["GELU by tanh and a power", "SiLU"])
def test_one_node_in_float32_takes_the_others_with_it(name):
    black = "Tanh" if "tanh" in name else "Sigmoid"
    report = amp.transpile(
        model(name),
        level="auto",
        amp_lists=amp.AutoMixedPrecisionLists(custom_black_list=[black]),
        verify=False,
        prefer="size",
        fuse="none",
    )
    decisions, reasons = support.decisions(report), support.reasons(report)
    assert decisions["r"] == "high"
    assert reasons["r"].startswith(f"part of {WHOLES[name]}, which is one operator: ")


def test_a_square_elsewhere_is_still_unsafe():
    """A cube that is no part of a GELU stays float32."""
    proto = model("GELU by tanh and a power")
    next(node for node in proto.graph.node if node.name == "t").op_type = "Erf"
    report = amp.transpile(proto, level="auto", dtype=FLOAT16.name, verify=False, prefer="size")
    assert support.decisions(report)["p"] == "high"
