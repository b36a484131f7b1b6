"""Rules of the user's own: what they are told, what they may answer, and where they are in force."""

import asyncio
import threading

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.raf import casting_rules
from amp_transpiler.systems.raf.casting_rules import CustomTypeHint, RuleInput, casting_rule, find_rule
from amp_transpiler.systems.raf.rules import RafRules
from amp_transpiler.targets import TARGETS
from tests.support import array, parse

W = array(4, 4, seed=1, scale=0.5)
IMPORTS = ', "my.domain": 3, "com.microsoft": 1'
HEAD = "(float[N,4] x, int64[2] k) => (float[N,4] y)"


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(casting_rules, "_registered", {})


def decided(body, head=HEAD, low=FLOAT16, opset=18, target="cuda", **lists):
    """Node name -> decision."""
    weights = {"w": W} if "w)" in body else {}
    model = ir.from_proto(parse(f"{head} {{ {body} }}", opset=opset, imports=IMPORTS, **weights))
    propagate_types(model)
    rules = RafRules(low, amp.AutoMixedPrecisionLists(**lists))
    assigned = assign(model, Policy(low=low, target=TARGETS[target], rules=rules))
    return {node.name: decision for node, decision in assigned.decisions.items()}


def hinting(*hints):
    return lambda node, inputs, low_dtype: list(hints)


def never(node, inputs, low_dtype):
    return ["float32"] * len(inputs)


def always(node, inputs, low_dtype):
    return [low_dtype] * len(inputs)


# ---- what a rule is told ----


def test_a_rule_is_told_the_node_its_inputs_and_the_low_dtype():
    asked = []

    def rule(node, inputs, low_dtype):
        asked.append((node.name, list(inputs), low_dtype))
        return [None] * len(inputs)

    body = "[m] h = MatMul (x, w) [n] y = my.domain.Mix (h, , k, w)"
    with CustomTypeHint({"my.domain::Mix": rule}):
        assert decided(body, f"{HEAD} <float[N,4] h>")["n"].precision == "high"
    h = RuleInput("h", "float16", ("N", 4), False)
    w = RuleInput("w", "float32", (4, 4), True)
    assert asked == [("n", [h, None, RuleInput("k", "int64", (2,), False), w], "float16")]


# What makes h, and the dtype that a reader is told of it.
ARRIVALS = {
    "an input": ("h = Identity (x)", "float32", FLOAT16),
    "what a low node made": ("h = MatMul (x, w)", "float16", FLOAT16),
    "what a low node made, in bfloat16": ("h = MatMul (x, w)", "bfloat16", BFLOAT16),
    "a cast of a low value": ("a = MatMul (x, w) h = Cast <to = 1> (a)", "float16", FLOAT16),
    "a cast of a value that was low in the source": (
        "a = Cast <to = 10> (x) h = Cast <to = 1> (a)",
        "float16",
        FLOAT16,
    ),
    "a cast of a cast": (
        "a = Cast <to = 10> (x) b = Cast <to = 1> (a) h = Cast <to = 1> (b)",
        "float16",
        FLOAT16,
    ),
    "a cast of another float": ("a = Cast <to = 11> (x) h = Cast <to = 1> (a)", "float32", FLOAT16),
    "a cast of an integer": ("h = Cast <to = 1> (k)", "float32", FLOAT16),
    "low in the source": ("h = Cast <to = 10> (x)", "float16", FLOAT16),
    "float16 in a bfloat16 conversion": ("h = Cast <to = 10> (x)", "float16", BFLOAT16),
    "double": ("h = Cast <to = 11> (x)", "float64", FLOAT16),
    "bool": ("h = Cast <to = 9> (x)", "bool", FLOAT16),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_the_dtype_that_a_rule_is_told(name):
    body, expected, low = ARRIVALS[name]
    asked = []

    def rule(node, inputs, low_dtype):
        asked.append(inputs[0].dtype)
        return [None, None]

    with CustomTypeHint({"my.domain::Mix": rule}):
        decided(f"{body} [n] y = my.domain.Mix (h, x)", low=low)
    assert asked == [expected]


# ---- what it may answer ----

HINTS = {
    # name: (rule, precision of Add (h, h) behind a MatMul)
    "a string": (hinting("float16", "float16"), "low"),
    "a numpy type": (hinting(np.float16, np.float16), "low"),
    "a numpy dtype": (hinting(np.dtype(np.float16), "float16"), "low"),
    "ONNX's type": (hinting(ir.DataType.FLOAT16, ir.DataType.FLOAT16), "low"),
    "a tuple": (lambda node, inputs, low_dtype: (low_dtype, low_dtype), "low"),
    "float32": (hinting("float32", np.float32), "high"),
    "as in the source": (hinting(None, None), "high"),
    "float32 and as in the source": (hinting("float32", None), "high"),
}


@pytest.mark.parametrize("name", HINTS)
def test_hints(name):
    rule, expected = HINTS[name]
    with CustomTypeHint({"Add": rule}):
        decision = decided("h = MatMul (x, w) [n] y = Add (h, h)")["n"]
    assert decision.precision == expected
    assert "casting rule for Add" in str(decision.reason)


ADD = "[n] y = Add (x, x)"
GATHER = "[n] y = Gather (x, k)"
ERRORS = {
    # name: (operator, body, rule, low, parts of the message)
    "too few": ("Add", ADD, hinting("float16"), FLOAT16, ["'n'", "1 hints", "expected 2", "len(inputs)"]),
    "too many": ("Add", ADD, hinting(None, None, None), FLOAT16, ["Add", "3 hints", "expected 2"]),
    "no list": ("Add", ADD, lambda *_: "float16", FLOAT16, ["'float16'", "a list of hints", "return a list"]),
    "nothing": ("Add", ADD, lambda *_: None, FLOAT16, ["None", "a list of hints"]),
    "an unknown dtype": ("Add", ADD, hinting("half-ish", None), FLOAT16, ["'half-ish'", "input 0 'x'", "'float32'"]),
    "an integer made low": ("Gather", GATHER, hinting(None, "float16"), FLOAT16, ["input 1 'k'", "'int64'", "None"]),
    "an integer made float32": ("Gather", GATHER, hinting(None, "float32"), FLOAT16, ["Gather", "'n'", "'int64'"]),
    "a float made an integer": ("Add", ADD, hinting("int64", None), FLOAT16, ["'int64'", "'float16' or None"]),
    "a float made double": ("Add", ADD, hinting(np.float64, None), FLOAT16, ["'float64'", "low_dtype"]),
    "the other low format": ("Add", ADD, hinting("float16", "float16"), BFLOAT16, ["'float16'", "'bfloat16' or None"]),
    "low in the source made float32": (
        "my.domain::Mix",
        "h = Cast <to = 10> (x) [n] y = my.domain.Mix (x, h)",
        hinting(None, "float32"),
        FLOAT16,
        ["my.domain::Mix", "'n'", "input 1 'h'", "'float16', which it is in the source"],
    ),
    "one low, one float32": ("Add", ADD, hinting("float16", None), FLOAT16, ["Add", "'n'", "inputs 0 float16", "0, 1"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_a_rule_may_not_answer(name):
    operator, body, rule, low, parts = ERRORS[name]
    with CustomTypeHint({operator: rule}), pytest.raises(OptionError) as caught:
        decided(body, low=low)
    for part in parts:
        assert part in str(caught.value)


def test_an_integers_own_dtype_is_a_hint_that_changes_nothing():
    with CustomTypeHint({"Gather": hinting("float16", "int64")}):
        assert decided(GATHER)["n"].precision == "low"


def test_what_a_rule_raises_comes_out():
    def broken(node, inputs, low_dtype):
        raise ZeroDivisionError("mine")

    with CustomTypeHint({"Add": broken}), pytest.raises(ZeroDivisionError, match="mine"):
        decided(ADD)


# ---- registering ----


def test_a_registered_rule_stands_over_the_built_in_one():
    assert decided("[n] y = Exp (x)")["n"].precision == "high"
    assert casting_rule("Exp")(always) is always
    assert decided("[n] y = Exp (x)")["n"].precision == "low"
    assert find_rule("ai.onnx", "Exp", 18) is always


@pytest.mark.parametrize(("opset", "expected"), [(1, None), (12, None), (13, never), (17, never), (18, always)])
def test_the_newest_rule_that_is_old_enough(opset, expected):
    casting_rule("Add", since=18)(always)
    casting_rule("Add", since=13)(never)
    assert find_rule("", "Add", opset) is expected


@pytest.mark.parametrize(("opset", "expected"), [(17, "high"), (18, "low")])
def test_since_goes_by_the_models_opset(opset, expected):
    casting_rule("Exp", since=18)(always)
    assert decided("[n] y = Exp (x)", opset=opset)["n"].precision == expected


def test_since_goes_by_the_main_graphs_opset_in_bodies():
    casting_rule("Exp", since=18)(always)
    body = "y = If (c) <then_branch = a () => (float[2,4] p) { [n] p = Exp (x) }, else_branch = b () => (float[2,4] q)"
    body += " { q = Identity (x) }>"
    head = "(float[2,4] x, bool c) => (float[2,4] y)"
    assert decided(body, head, opset=18)["n"].precision == "low"
    assert decided(body, head, opset=17)["n"].precision == "high"


def test_since_goes_by_the_domains_version():
    casting_rule("Mix", domain="my.domain", since=4)(always)
    with pytest.raises(OptionError, match=r"my\.domain::Mix \(1 node\)"):
        decided("y = my.domain.Mix (x, k)")
    casting_rule("Mix", domain="my.domain", since=3)(hinting("float16", None))
    assert decided("[n] y = my.domain.Mix (x, k)")["n"].precision == "low"


WRONG = {
    # name: (what is done, part of the message)
    "a version that is none": (lambda: casting_rule("Add", since=0), "got 0"),
    "a version in words": (lambda: casting_rule("Add", since="18"), "got '18'"),
    "no function": (lambda: casting_rule("Add")("float16"), "got 'float16'"),
    "no function, in a block": (lambda: CustomTypeHint({"Add": None}), "got None"),
    "an operator that is none": (lambda: CustomTypeHint({"add": never}), "did you mean Add"),
    "RAF's own name": (lambda: CustomTypeHint({"raf.op.bias_add": never}), "raf.op.bias_add"),
    "Paddle's name": (lambda: casting_rule("conv2d"), "no such operator"),
    "a finer class": (lambda: casting_rule("Pow[scalar]"), "no such operator"),
    "an operator that has no precision": (lambda: casting_rule("Cast"), "so no rule is asked about it"),
    "no operator": (lambda: CustomTypeHint({"my.domain::": never}), "'Op' or 'domain::Op'"),
    "no domain": (lambda: CustomTypeHint({"::Add": never}), "'Op' or 'domain::Op'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_registered(name):
    act, part = WRONG[name]
    with pytest.raises(OptionError) as caught:
        act()
    assert part in str(caught.value)


# ---- CustomTypeHint ----


def test_a_block_restores_what_was_there():
    casting_rule("Add")(always)
    with CustomTypeHint({"Add": never, "my.domain::Mix": never, "ai.onnx::Exp": never}):
        assert find_rule("", "Add", 18) is never
        assert find_rule("my.domain", "Mix", 3) is never
        assert find_rule("", "Exp", 18) is never
    assert find_rule("", "Add", 18) is always
    assert find_rule("my.domain", "Mix", 3) is None, "an operator that had none ends with none"
    assert find_rule("", "Exp", 18) is None


def test_blocks_nest_and_are_left_by_errors():
    def fail():
        with CustomTypeHint({"Add": always}):
            assert (find_rule("", "Add", 18), find_rule("", "Exp", 18)) == (always, never)
            raise KeyError("mine")

    with CustomTypeHint({"Add": never, "Exp": never}):
        with pytest.raises(KeyError, match="mine"):
            fail()
        assert find_rule("", "Add", 18) is never
    assert find_rule("", "Add", 18) is None


def test_a_block_can_be_used_again_even_within_itself_and_as_a_decorator():
    hint = CustomTypeHint({"Add": never})

    @hint
    def inside():
        return find_rule("", "Add", 18)

    with hint:
        with hint:
            assert inside() is never
        assert find_rule("", "Add", 18) is never
    assert find_rule("", "Add", 18) is None
    assert inside() is never
    assert find_rule("", "Add", 18) is None


def test_a_block_is_of_its_own_thread():
    hint = CustomTypeHint({"Add": never})
    entered, checked, seen = threading.Event(), threading.Event(), []

    def other():
        seen.append(find_rule("", "Add", 18))
        with hint:
            entered.set()
            checked.wait(10)
            seen.append(find_rule("", "Add", 18))
        seen.append(find_rule("", "Add", 18))

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    assert find_rule("", "Add", 18) is None
    with hint:
        pass
    checked.set()
    thread.join(10)
    assert seen == [None, never, None]

    with hint:
        late = threading.Thread(target=lambda: seen.append(find_rule("", "Add", 18)))
        late.start()
        late.join(10)
    assert seen[-1] is None


def test_a_block_is_of_its_own_task():
    async def task(rule, mine, other):
        with CustomTypeHint({"Add": rule}):
            mine.set()
            await other.wait()
            return find_rule("", "Add", 18)

    async def both():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(task(never, first, second), task(always, second, first))

    assert asyncio.run(both()) == [never, always]


# ---- custom domains ----

CUSTOM = {
    # name: (rule, low inputs, low outputs, or None for high)
    "all of it": (hinting("float16", "float16", None), ({0, 1}, {0})),
    "the data alone: the output stays": (hinting("float16", None, None), ({0}, set())),
    "nothing": (hinting(None, "float32", None), None),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_an_operator_without_a_schema(name):
    rule, expected = CUSTOM[name]
    with CustomTypeHint({"my.domain::Mix": rule}):
        decision = decided("[n] y = my.domain.Mix (x, x, k)")["n"]
    if expected is None:
        assert (decision.precision, decision.form) == ("high", None)
    else:
        assert (decision.form.inputs, decision.form.outputs) == expected


def test_a_rule_can_sit_on_a_contrib_operator():
    body = "h = MatMul (x, w) [n] y = com.microsoft.FastGelu (h)"
    assert decided(body)["n"].precision == "high"
    with CustomTypeHint({"com.microsoft::FastGelu": always}):
        assert decided(body)["n"].precision == "low"


def test_operators_without_a_rule_are_all_named():
    body = (
        "a = my.domain.Mix (x, k) b = my.domain.Mix (a, k) c = my.domain.Blend (b) d = my.domain.Hash (k) y = Relu (c)"
    )
    head = "(float[N,4] x, int64[2] k) => (float[N,4] y, int64[2] d) <float[N,4] a, float[N,4] b>"
    with pytest.raises(ValueError, match=r"my.domain::Blend \(1 node\), my.domain::Mix \(2 nodes\)") as caught:
        decided(body, head)
    assert '@amp.casting_rule("Blend", domain="my.domain")' in str(caught.value)
    assert "Hash" not in str(caught.value), "it has no float32 tensor"


def test_what_becomes_low_must_have_a_type():
    body = "[n] a = my.domain.Mix (x) y = my.domain.Mix (a)"
    with CustomTypeHint({"my.domain::Mix": always}):
        with pytest.raises(OptionError, match=r"'n', would run in lower precision.*'a' is not known.*value_info"):
            decided(body)
        assert decided(body, f"{HEAD} <float[N,4] a>")["n"].precision == "low"
    with CustomTypeHint({"my.domain::Mix": hinting(None)}):
        assert decided(body)["n"].precision == "high"


def test_a_rule_or_a_list_is_an_answer_for_an_operator():
    body = "[n] y = my.domain.Mix (x)"
    assert decided(body, custom_black_list=["my.domain::Mix"])["n"].precision == "high"
    assert decided(body, custom_white_list=["my.domain::Mix"])["n"].precision == "low"
    with CustomTypeHint({"my.domain::Mix": always}):
        assert decided(body)["n"].precision == "low"
        assert decided(body, custom_black_list=["my.domain::Mix"])["n"].precision == "high"
