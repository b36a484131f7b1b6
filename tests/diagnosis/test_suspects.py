"""What is said of each node: its fault, what the outputs feel of it, and why."""

import dataclasses
import math

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.differences import Difference, Measured
from amp_transpiler.diagnosis.suspects import rows_of, suspect
from tests.diagnosis.findings import HEAD, findings_of
from tests.diagnosis.programs import WEIGHTS, model_of
from tests.support import array, run

# how the low node errs -> the fault
FAULTS = {
    "rounding": ({}, "rounding", "its rounding is"),
    "infinite": ({"infinite": 2}, "overflow", "25% of its numbers become infinite"),
    "another shape": ({"has_shape": False}, "overflow", "another shape in the low model"),
    "zeros": ({"vanished": 4}, "vanishing", "50% of its numbers become zero"),
    "few zeros": ({"vanished": 8, "nonzero": 1000}, "rounding", "its rounding is"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_the_fault_and_why(case):
    facts, fault, words = FAULTS[case]
    findings = findings_of(**facts)
    row = rows_of(findings)[0]
    assert row.fault == fault
    said = suspect(findings, row)
    assert (said.node, said.op, said.value, said.fault) == ("a", "MatMul", "h", fault)
    assert words in said.why


def test_a_constant_with_other_numbers():
    low = HEAD + " { z = Cast<to=10> (x) [a] h = MatMul (z, w16) [b] i = Sigmoid (h) [c] r = MatMul (i, w16) "
    findings = findings_of(low + "y = Cast<to=1> (r) }")
    rows = {row.node: row for row in rows_of(findings)}
    assert {node: row.fault for node, row in rows.items()} == {"a": "rounding", "b": "rounding", "c": "constant"}
    assert "it reads 'v', which has other numbers" in suspect(findings, rows["c"]).why


def test_constants_that_only_a_cast_rounds_are_the_same():
    low = HEAD + " { z = Cast<to=10> (x) k = Cast<to=10> (w) [a] h = MatMul (z, k) [b] i = Sigmoid (h) "
    rows = rows_of(findings_of(low + "[c] r = MatMul (i, v16) y = Cast<to=1> (r) }"))
    assert {row.fault for row in rows} == {"rounding"}


# what is felt of a rounding, and how the low node errs -> what it adds to an output
CONTRIBUTIONS = {
    "as much as a rounding": (4e-8, {}, 2e-4),
    "four times the rounding": (4e-8, {"square": 16e-8}, 8e-4),
    "no more than all": (4e-8, {"square": 1e8}, 1.0),
    "an error of nothing": (4e-8, {"square": 0.0}, 0.0),
    "nothing felt": (0.0, {"square": 16e-8}, 0.0),
    "infinite": (4e-8, {"infinite": 1}, math.inf),
    "infinite and not felt": (0.0, {"infinite": 1}, 0.0),
}


@pytest.mark.parametrize("case", CONTRIBUTIONS)
def test_what_an_error_adds(case):
    felt, facts, expected = CONTRIBUTIONS[case]
    row = rows_of(findings_of(felt=felt, **facts))[0]
    assert row.contribution == pytest.approx(expected)
    assert (row.fault is None) == (expected == 0.0)


def test_without_derivatives_an_error_counts_as_it_is():
    assert [row.contribution for row in rows_of(findings_of(felt=None))] == pytest.approx([1e-4] * 3)


def test_without_a_derivative_only_outputs_and_integers_are_felt():
    findings = dataclasses.replace(findings_of(), felt={})
    assert [row.contribution for row in rows_of(findings)] == [None, None, pytest.approx(1e-4)]


def test_a_result_beyond_the_format_adds_what_is_felt_of_its_loss():
    findings = findings_of(felt=0.09)
    measured = {
        name: Measured(rounding=math.inf, low=facts.low, own=Difference(norm=1.0, count=8, infinite=8))
        for name, facts in findings.measured.items()
    }
    assert rows_of(dataclasses.replace(findings, measured=measured))[0].contribution == pytest.approx(0.3)


def test_contributions_are_near_what_happens():
    """A linear graph: what a node's own error does to the output is computed by numpy."""
    graph = HEAD + " { [a] h = MatMul (x, w) [b] i = Add (h, b) [c] y = MatMul (i, v) }"
    x, model = array(2, 4, seed=5), model_of(graph)
    w, v, b = (WEIGHTS[name] for name in "wvb")
    rows = {row.node: row for row in amp.debug(model, inputs={"x": x}, cure=False).nodes}
    y = run(model, {"x": x})["y"]
    x16, w16, b16 = (values.astype(np.float16).astype(np.float32) for values in (x, w, b))
    h = x @ w
    roundings = {"a": (x16 @ w16).astype(np.float16) - h, "b": (h + b16).astype(np.float16) - (h + b)}
    for node, error in roundings.items():
        expected = np.linalg.norm(error @ v) / np.linalg.norm(y)
        assert expected / 3 < rows[node].contribution < expected * 3
        norm = np.linalg.norm(h if node == "a" else h + b)
        assert rows[node].own_error == pytest.approx(np.linalg.norm(error) / norm, rel=1e-3)
