"""Names and patterns of inputs, outputs, values and operators, looked up in a model."""

import logging

import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.name_matching import matching_names
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.program_names import low_inputs_and_outputs, resolved_lists

MODEL = """
<ir_version: 10, opset_import: ["": 17, "my.domain": 1]>
net (float[4] past_0_key, float[4] past_0_value, float[4] other_key, int64[4] past_ids)
    => (float[4] present_0_key, float[4] logits)
{
    [add] hidden_1 = Add (past_0_key, past_0_value)
    [odd] hidden_2 = my.domain.Odd (hidden_1)
    [relu] present_0_key = Relu (hidden_2)
    [mean] mean = ReduceMean (hidden_1)
    [sum] logits = Mul (other_key, mean)
}
"""
INPUTS = {"past_0_key", "past_0_value", "other_key", "past_ids"}
EVERY = INPUTS | {"present_0_key", "logits"}


@pytest.fixture(scope="module")
def program():
    return load(onnx.parser.parse_model(MODEL))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.b", ["a.b"]),  # the exact name, and not aXb as well
        ("a.c", ["aXc", "a_c"]),
        ("a", []),  # all of a name must match
        ("a.*", ["a.b", "aXb", "aXc", "a_c"]),
        ("x(1)", ["x(1)"]),  # no pattern would match it
        ("", []),
    ],
)
def test_an_exact_name_wins_over_a_pattern(text, found):
    assert matching_names(text, ["a.b", "aXb", "aXc", "a_c", "x(1)"], "--black-var") == found


# What is wanted -> the inputs and outputs that become low.
IO_TYPES = {
    "keep all": (True, set()),
    "low all": (False, EVERY),
    "keep one": (["logits"], EVERY - {"logits"}),
    "keep by pattern": (["past_.*", "logits"], {"present_0_key", "other_key"}),
    "keep one, as text": ("present_.*", EVERY - {"present_0_key"}),
    "low by name": ({"logits": "low"}, {"logits"}),
    "low by pattern, integers aside": ({"past_.*": "low"}, {"past_0_key", "past_0_value"}),
    "the last word": ({".*": "low", "past_.*": "keep"}, {"present_0_key", "logits", "other_key"}),
}


@pytest.mark.parametrize(("wanted", "low"), IO_TYPES.values(), ids=IO_TYPES)
def test_inputs_and_outputs_by_pattern(program, wanted, low):
    assert low_inputs_and_outputs(program, wanted, "float16") == low


WRONG_IO_TYPES = {
    "no such name": ({"logit": "low"}, ["--io-types logit=low", "did you mean 'logits'"]),
    "no such pattern": ({"future.*": "low"}, ["--io-types future.*=low", "it has logits, other"]),
    "an integer": ({"past_ids": "low"}, ["'past_ids' is INT64"]),
    "integers by pattern": ({".*_ids": "low"}, ["'past_ids' is INT64"]),
    "no pattern": ({"(": "low"}, ["--io-types (=low", "regular expression"]),
    "another word": ({"logits": "float8"}, ["'keep' or 'low'"]),
    "kept, no such name": (["logit"], ["keep_io_types", "'logit'", "did you mean 'logits'"]),
}


@pytest.mark.parametrize(("wanted", "parts"), WRONG_IO_TYPES.values(), ids=WRONG_IO_TYPES)
def test_wrong_inputs_and_outputs_are_refused(program, wanted, parts):
    with pytest.raises(OptionError) as error:
        low_inputs_and_outputs(program, wanted, "float16")
    assert [part for part in parts if part not in str(error.value)] == []


def changes(lists):
    """Return what is on the lists and not on the default ones."""
    plain = amp.AutoMixedPrecisionLists()
    white, black = lists.white_list - plain.white_list, lists.black_list - plain.black_list
    return set(lists.custom_white_list), set(lists.custom_black_list), white, black, set(lists.black_varnames)


# Lists as on the command line -> custom white and black operators, operators new on either list, values.
LISTS = {
    "names": (({"Relu"}, {"conv2d"}, {"hidden_1"}), ({"Relu"}, {"Conv"}, {"Relu"}, {"Conv"}, {"hidden_1"})),
    "an operator of the model alone": (
        (set(), {"my.domain::Odd"}, set()),
        (set(), {"my.domain::Odd"}, set(), {"my.domain::Odd"}, set()),
    ),
    "a pattern of the model's own operators": (
        ({"my\\.domain::.*"}, set(), set()),
        ({"my.domain::Odd"}, set(), {"my.domain::Odd"}, set(), set()),
    ),
    "a pattern of operators": (
        (set(), {"Rel.", "GlobalM.*"}, set()),
        (set(), {"Relu", "GlobalMaxPool"}, set(), {"Relu", "GlobalMaxPool"}, set()),
    ),
    "a pattern of Paddle's names": (({"rel."}, set(), set()), ({"Relu"}, set(), {"Relu"}, set(), set())),
    "a pattern of values": ((set(), set(), {"hidden.*"}), (set(), set(), set(), set(), {"hidden_1", "hidden_2"})),
    "a pattern of a finer class": (
        (set(), {"MaxPoo[l]"}, set()),
        (set(), {"MaxPool", "MaxPool[indices]"}, set(), {"MaxPool", "MaxPool[indices]"}, set()),
    ),
}


@pytest.mark.parametrize("kind", [UserLists, amp.AutoMixedPrecisionLists], ids=["command", "Python"])
@pytest.mark.parametrize(("given", "expected"), LISTS.values(), ids=LISTS)
def test_lists_by_pattern(program, kind, given, expected, caplog):
    with caplog.at_level(logging.WARNING):
        lists = kind(*map(frozenset, given))
        assert tuple(map(set, changes(resolved_lists(lists, program, "float16")))) == tuple(map(set, expected))
    assert kind is amp.AutoMixedPrecisionLists or not caplog.records


WRONG_LISTS = {
    "white": (({"Convv"}, (), ()), ["--white Convv", "did you mean Conv"]),
    "a pattern": (((), {"Redcue.*"}, ()), ["--black Redcue.*", "no operator of ONNX"]),
    "no pattern": (((), {"Red("}, ()), ["--black pattern 'Red('", "regular expression"]),
    "a value": (((), (), {"hidden7"}), ["--black-var hidden7", "did you mean 'hidden_2'"]),
    "values": (((), (), {"layer.*"}), ["--black-var layer.*"]),
    "both": (({"Rel."}, {"Relu"}, ()), ["'Relu'", "both"]),
}


@pytest.mark.parametrize(("given", "parts"), WRONG_LISTS.values(), ids=WRONG_LISTS)
def test_wrong_lists_are_refused(program, given, parts):
    with pytest.raises(OptionError) as error:
        resolved_lists(UserLists(*map(frozenset, given)), program, "float16")
    assert [part for part in parts if part not in str(error.value)] == []


def test_in_python_a_plain_name_may_be_unknown_but_no_pattern(program, caplog):
    """One object of lists may serve several models."""
    lists = amp.AutoMixedPrecisionLists(["my.own::Foo"], None, ["of_another_model"])
    assert resolved_lists(lists, program, "float16") is lists
    assert "my.own::Foo" in caplog.text
    with pytest.raises(OptionError, match=r"custom_black_varnames of_another\.\*"):
        resolved_lists(amp.AutoMixedPrecisionLists(None, None, ["of_another.*"]), program, "float16")
    with pytest.raises(OptionError, match=r"custom_white_list my\.own::F\+"):
        resolved_lists(amp.AutoMixedPrecisionLists(["my.own::F+"]), program, "float16")


def test_the_users_own_changes_of_lists_survive():
    lists = amp.AutoMixedPrecisionLists(None, ["Reduc[e]Max"])
    lists.white_list.discard("Conv")
    lists.black_list.add("Conv")
    resolved = resolved_lists(lists, load(onnx.parser.parse_model(MODEL)), "float16")
    assert {"Conv", "ReduceMax"} <= resolved.black_list
    assert "Conv" not in resolved.white_list
    assert "Reduc[e]Max" not in resolved.black_list | resolved.custom_black_list | resolved.unsupported_list
    assert "Reduc[e]Max" in lists.custom_black_list, "the user's object is as it was"


def test_black_variables_of_functions_are_not_judged_before_inlining():
    text = """
    <ir_version: 10, opset_import: ["": 17, "local": 1]>
    net (float[4] x) => (float[4] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["": 17]>
    twice (a) => (b) { inner = Add(a, a)  b = Identity(inner) }
    """
    program = load(onnx.parser.parse_model(text))
    for names, expected in (({"inner_of_some_kind"}, {"inner_of_some_kind"}), ({"inn.*"}, {"inner"})):
        lists = resolved_lists(UserLists(black_varnames=frozenset(names)), program, "float16")
        assert lists.black_varnames == expected


def test_patterns_of_operators_have_no_effect_without_transpile_and_a_warning_says_so(caplog):
    text = '<ir_version: 10, opset_import: ["": 17]> net (float[4] x) => (float[4] y) { y = Relu (x) }'
    amp.cast_model_to_fp16(onnx.parser.parse_model(text), amp.AutoMixedPrecisionLists(None, ["Rel.*"]))
    assert "Rel.*: only transpile looks up patterns of operators" in caplog.text
