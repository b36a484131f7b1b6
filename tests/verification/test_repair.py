"""Repair at level auto: what only data shows is found, made float32, and reported."""

import dataclasses
import math

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.errors import CheckFailed
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.verification.accuracy import CannotCompare, make_reference
from amp_transpiler.verification.repair import RepairBudget, worst_nodes
from tests import support
from tests.support import array, chain, parse

W = array(4, 4, seed=1, scale=0.5)
EYE = np.eye(4, dtype=np.float32)
X = {"x": array(2, 4)}
LARGE = {"x": np.full((2, 4), 3e4, np.float32)}
NEAR = {"x": 1000.0 + array(2, 4)}


def body(text, **weights):
    return parse(f"(float[2,4] x) => (float[2,4] y) {{ {text} }}", w=W, eye=EYE, **weights)


# name: (model, data, nodes that must be repaired, of which no others may be)
FAILING = {
    "a product overflows": (
        body(
            "[a] h = MatMul (x, eye) [b] d = Add (h, h) [c] m = MatMul (d, eye) [d] s = Mul (m, tiny) y = MatMul "
            "(s, w)",
            tiny=np.float32(1e-4),
        ),
        {"x": np.full((2, 4), 4e4, np.float32)},
        {"b"},
        set("bcd"),
    ),
    "a difference cancels": (
        body("[a] h = MatMul (x, eye) [b] s = Add (h, v) [c] d = Sub (s, x) y = MatMul (d, w)", v=array(4, seed=3)),
        NEAR,
        {"c"},
        set("abc"),
    ),
    "inside a body": (
        parse(
            """(float[2,4] x, bool c) => (float[2,4] y) {
                h = MatMul (x, eye)
                y = If (c) <then_branch = t () => (float[2,4] p) { [a] d = Add (h, h) [b] e = Mul (d, tiny) [c] p
                    = MatMul (e, w) },
                            else_branch = e () => (float[2,4] q) { [z] q = MatMul (h, w) }>
            }""",
            w=W,
            eye=EYE,
            tiny=np.float32(1e-4),
        ),
        {"x": np.full((2, 4), 4e4, np.float32), "c": np.array(True)},
        {"a"},
        set("abcz"),
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_the_data_given_is_repaired_and_reported(name):
    model, feeds, required, allowed = FAILING[name]
    report = amp.transpile(model, level="auto", inputs=feeds)
    assert report.verdict_word == "verified", report.verdict
    assert required <= set(report.repaired) <= allowed
    assert any("made float32" in note for note in report.notes)
    for node in report.repaired:
        assert support.decisions(report)[node] == "high"
        assert support.reasons(report)[node].startswith("repaired: in float16 it ")
    support.assert_valid(report.program)
    support.assert_close(support.run(model, feeds), support.run_emulated(report.program, feeds), 0.02)
    assert "low" in support.decisions(report).values(), "not everything"


@pytest.mark.parametrize("name", FAILING)
def test_the_same_model_on_tame_data_is_not(name):
    model, feeds, _, _ = FAILING[name]
    report = amp.transpile(model, level="auto", inputs={**feeds, "x": X["x"]}, tolerance=0.05)
    assert report.repaired == ()


@pytest.mark.parametrize("level", ["OD", "O1", "O2"])
def test_other_levels_are_not_repaired(level):
    """They do what their lists say, and warn or fail."""
    model, feeds, _, _ = FAILING["a product overflows"]
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Add", "Mul"])
    with pytest.raises(CheckFailed, match="non-finite") as caught:
        amp.transpile(model, level=level, inputs=feeds, amp_lists=lists)
    assert caught.value.report.repaired == ()


def test_an_inaccurate_result_is_only_warned_of_at_o2():
    model, feeds, _, _ = FAILING["a difference cancels"]
    report = amp.transpile(model, level="O2", inputs=feeds)
    assert report.outputs["y"].relative > 0.02
    assert report.repaired == ()


def test_what_cannot_be_repaired_fails_and_writes_nothing(tmp_path):
    """A tolerance below float32's own resolution of the first cast."""
    before = support.folder_hash(tmp_path)
    model = chain("MatMul ({}, w)", w=W)
    report = amp.transpile(model, level="auto", inputs=X, tolerance=1e-9)
    assert support.decisions(report) == {"y": "high"}, "with every node float32 there is no error left"
    limits = amp.transpile(model, tmp_path / "a.onnx", level="auto", inputs=X, tolerance=1e-9, keep_io_types=True)
    assert limits.low_nodes == 0
    assert set(support.folder_hash(tmp_path)) - set(before) == {"a.onnx"}
    with pytest.raises(CheckFailed, match="after making 1 nodes float32"):
        amp.transpile(model, tmp_path / "b.onnx", level="auto", inputs=X, tolerance=1e-9, keep_io_types=False)
    assert not (tmp_path / "b.onnx").exists()


def test_where_intermediate_values_cannot_be_read_nothing_is_repaired_and_it_is_said(monkeypatch):
    def unreadable(*_, **__):
        raise CannotCompare("it does not run with them")

    monkeypatch.setattr("amp_transpiler.verification.verify.worst_nodes", unreadable)
    model, feeds, *_ = FAILING["a product overflows"]
    with pytest.raises(CheckFailed) as caught:
        amp.transpile(model, level="auto", inputs=feeds)
    assert "not repaired: it does not run with them" in caught.value.report.notes


def test_a_repaired_model_stays_as_it_is_when_converted_again():
    model, feeds, _, _ = FAILING["a product overflows"]
    once = amp.transpile(model, level="auto", inputs=feeds)
    twice = amp.transpile(model, level="auto", inputs=feeds)
    assert once.repaired == twice.repaired
    assert once.program.to_onnx().SerializeToString(deterministic=True) == twice.program.to_onnx().SerializeToString(
        deterministic=True
    )


def ranked(model, feeds, forced=()):
    source = amp.load(model)
    prepared = source.clone()
    policy = dataclasses.replace(choose_policy(Request()), forced_high=dict.fromkeys(forced, "asked for"))
    ranges = RangeFaults(FLOAT16)
    prepare(prepared, policy, ranges)
    work = prepared.clone()
    conversion = convert(work, policy, ranges)
    return worst_nodes(prepared, work, conversion.assignment, make_reference(source, prepared, feeds), FLOAT16)


def test_nodes_that_make_or_read_what_is_beyond_the_range_come_at_once_and_alone():
    model, feeds, _, _ = FAILING["a product overflows"]
    assert ranked(model, feeds) == dict.fromkeys("bcd", "repaired: in float16 it became non-finite")


def test_a_node_that_is_float32_already_is_not_found_again():
    model, feeds, _, _ = FAILING["a product overflows"]
    assert "b" not in ranked(model, feeds, forced=("b",))


def test_a_node_that_inherits_its_error_is_not_blamed():
    """Its own error is its result's, less the largest among its inputs."""
    model = body(
        "[a] h = MatMul (x, eye) [b] s = Add (h, v) [c] d = Sub (s, x) [relu] r = Relu (d) y = MatMul (r, w)",
        v=array(4, seed=3),
    )
    assert set(ranked(model, NEAR)) == {"c"}


BUDGETS = {
    "every round helps: small steps": ([1.0, 0.5, 0.2], 0.05),
    "the first error says nothing yet": ([0.02], 0.05),
    "one round hardly helped": ([0.03, 0.0299], 0.05),
    "two rounds hardly helped": ([0.03, 0.0299, 0.0299], 0.1),
    "a round that helped lies between": ([0.03, 0.0299, 0.02, 0.021], 0.1),
    "better than the round before, but not than the best": ([0.03, 0.04, 0.035], 0.1),
    "it helped at last: the step stays": ([0.03, 0.04, 0.04, 0.02], 0.1),
    "an overflow is no step backward": ([math.inf, math.inf, 0.03], 0.05),
    "a value became non-finite": ([0.03, math.inf, math.inf], 0.1),
    "never more than all": ([0.03] * 9, 1.0),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_the_step_of_a_repair_doubles_where_it_hardly_helped(name):
    """users: ddddocr's common_old stopped at 2.10 % of 2 % after ten small steps."""
    errors, share = BUDGETS[name]
    budget = RepairBudget()
    for error in errors:
        budget.update(error)
    assert budget.share == pytest.approx(share)


def test_a_node_whose_only_error_is_its_own_rounding_is_found_for_integers():
    """All that it reads is exact, and no node after it computes with the rounded number and is blamed for it."""
    feeds = {"x": array(20, 4).astype(np.float16).astype(np.float32)}
    model = parse(
        "(float[20,4] x) => (int64[20,1] y) { [h] h = MatMul (x, eye) [a] a = Add (h, big) y = ArgMax <axis = 1> (a) }",
        eye=EYE,
        big=np.float32(30000.0),
    )
    assert amp.transpile(model, level="O2", inputs=feeds).outputs["y"].mismatched
    report = amp.transpile(model, level="auto", inputs=feeds)
    assert report.verdict.startswith("verified: all 20 integers agree with fp32")
    assert report.repaired == ("a",)
    assert support.decisions(report)["h"] == "low"
