"""What is said of each node: its fault, what the outputs feel of it, and why."""

import math

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.differences import Difference, Measured
from amp_transpiler.diagnosis.joined import join
from amp_transpiler.diagnosis.pairs import pair
from amp_transpiler.diagnosis.suspects import Findings, rows_of, suspect
from amp_transpiler.graph.dtypes import low_format
from tests.diagnosis.programs import WEIGHTS, converted, model_of, program_of
from tests.support import array, run

HEAD = "(float[2,4] x) => (float[2,4] y)"
GRAPH = HEAD + " { [a] h = MatMul (x, w) [b] i = Sigmoid (h) [c] y = MatMul (i, v) }"
ROUNDED = 4e-8  # the square of what rounding a result changes, in the findings of these tests


def findings_of(low=None, *, felt=ROUNDED, **facts):
    """Return findings that say the same of every result; `facts` are about the low node alone."""
    first, second = program_of(GRAPH), program_of(low or converted(model_of(GRAPH)))
    pairs = pair(first, second)
    triples = join(first, second, pairs).triples
    values = {value.name: value for node in first.model.graph for value in node.outputs}
    own = Difference(**{"square": 1e-8, "norm": 1.0, "count": 8, "nonzero": 8, **facts})
    rounding = math.inf if felt == math.inf else 1e-8
    measured = {triple.reference: Measured(rounding=rounding, low=own, own=own) for triple in triples}
    by_name = None if felt is None else dict.fromkeys(values, felt)
    return Findings(values, pairs, triples, measured, by_name, low_format("float16"))


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


def test_a_result_beyond_the_format_adds_what_is_felt_of_its_loss():
    findings = findings_of(felt=0.09)
    measured = {
        name: Measured(rounding=math.inf, low=facts.low, own=Difference(norm=1.0, count=8, infinite=8))
        for name, facts in findings.measured.items()
    }
    findings = Findings(
        findings.reference, findings.pairs, findings.triples, measured, findings.felt, low_format("float16")
    )
    assert rows_of(findings)[0].contribution == pytest.approx(0.3)


def test_contributions_are_near_what_happens():
    """A linear graph: what a node's own error does to the output is computed by numpy."""
    graph = HEAD + " { [a] h = MatMul (x, w) [b] i = Add (h, b) [c] y = MatMul (i, v) }"
    x, model = array(2, 4, seed=5), model_of(graph)
    w, v, b = (WEIGHTS[name] for name in "wvb")
    rows = {row.node: row for row in amp.debug(model, inputs={"x": x}, cure=False).nodes}
    y = run(model, {"x": x})["y"]
    x16, w16, b16 = (values.astype(np.float16).astype(np.float32) for values in (x, w, b))
    h = x @ w
    own = {"a": (x16 @ w16).astype(np.float16) - h, "b": (h + b16).astype(np.float16) - (h + b)}
    for node, error in own.items():
        expected = np.linalg.norm(error @ v) / np.linalg.norm(y)
        assert expected / 3 < rows[node].contribution < expected * 3
        norm = np.linalg.norm(h if node == "a" else h + b)
        assert rows[node].own_error == pytest.approx(np.linalg.norm(error) / norm, rel=1e-3)
