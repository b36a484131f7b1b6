"""What a failure advises: never what was just tried."""

import re

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.checker import fault_in_words
from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.facts import Task
from amp_transpiler.verification.remedies import advice
from tests.support import array, parse

FAR = OutputComparison("y", "float32", (2,), 1.0, 0.03354, 1.0, elements=2)
LOST = OutputComparison("y", "float32", (2,), 1.0, np.inf, 1.0, nonfinite=3, elements=2)
LABELS = OutputComparison("y", "int64", (8,), 0.0, 0.0, 1.0, mismatched=3, elements=8, excused=1)
OTHER = OutputComparison("y", "int64", (8,), np.inf, np.inf, 0.0, mismatched=8, elements=8, structure_differs=True)
BLACK = "--black or --disable-amp for the nodes at fault"
CASES = {
    "auto": (FAR, {"level": "auto"}, f"Try level O1 or {BLACK} or --tolerance 3.4%"),
    "O1": (FAR, {"level": "O1"}, f"Try level auto or {BLACK} or --tolerance 3.4%"),
    "O2": (FAR, {"level": "O2"}, f"Try level auto or level O1 or {BLACK} or --tolerance 3.4%"),
    "a policy": (
        FAR,
        {"level": None, "asked": "policy torch"},
        f"Try level auto instead of policy torch or {BLACK} or --tolerance 3.4%",
    ),
    "bfloat16": (
        FAR,
        {"level": "O1", "dtype": "bfloat16"},
        f"Try level auto or float16, which is more exact or {BLACK} or --tolerance 3.4%",
    ),
    "float32": (FAR, {"level": "auto", "dtype": "float32"}, "Try --tolerance 3.4%"),
    "non-finite": (
        LOST,
        {"level": "auto"},
        f"Try level O1 or bfloat16, whose range is float32's or {BLACK}",
    ),
    "non-finite in bfloat16": (LOST, {"level": "O1", "dtype": "bfloat16"}, f"Try level auto or {BLACK}"),
    "labels": (LABELS, {"level": "O1"}, f"Try level auto or {BLACK} or --mismatch 25%"),
    "another shape": (OTHER, {"level": "O1"}, f"Try level auto or {BLACK}"),
    "one of two outputs": (
        FAR,
        {"level": "O1", "is_only": False},
        f"Try level auto or {BLACK} or --tolerance 'y'=3.4%",
    ),
}


@pytest.mark.parametrize(("row", "asked", "expected"), CASES.values(), ids=CASES)
def test_advice(row, asked, expected):
    fields = {"level": None, "dtype": "float16", "target": "cuda", "is_only": True, **asked}
    is_only = fields.pop("is_only")
    task = Task("m", **fields)
    assert advice(task, row, Limits(0.02), is_only=is_only) == expected


@pytest.mark.parametrize(("level", "dtype"), [("auto", "float16"), ("O1", "float16"), ("O2", "bfloat16")])
def test_a_failure_names_a_limit_that_would_do(level, dtype):
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4, seed=1))
    options = {"level": level, "dtype": dtype, "inputs": {"x": array(2, 4)}, "keep_io_types": False}
    with pytest.raises(amp.CheckFailed, match=r"allowed are 1e-07%") as error:
        amp.transpile(model, tolerance=1e-9, **options, prefer="size")
    advised = str(error.value).partition("Try ")[2]
    assert not re.search(rf"level {level}\b|(?<![a-z]){dtype}|1e-07", advised), advised
    report = amp.transpile(model, tolerance=advised.rpartition(" ")[2], **options, prefer="size")
    assert report.verdict_word == "verified"


CHECKER = {
    "an unknown operator": (
        "No Op registered for Foo with domain_version of 17 ==> Context: Bad node spec for node. Name: n OpType: Foo",
        "node 'n': opset 17 has no operator Foo; correct its name or domain, or the opset that the model imports",
    ),
    "a former operator": (
        "Op registered for Upsample is deprecated in domain_version of 17 ==> Bad node spec for node. Name: up OpType:",
        "node 'up': opset 17 no longer has operator Upsample; export the model anew",
    ),
    "an attribute": (
        "Unrecognized attribute: foo for operator Relu ==> Context: Bad node spec for node. Name: r OpType: Relu",
        "node 'r': Relu has no attribute 'foo' in the opset that the model imports; remove it",
    ),
    "anything else": ("field x is wrong", "onnx.checker says: field x is wrong; export the model anew"),
}


@pytest.mark.parametrize(("fault", "expected"), CHECKER.values(), ids=CHECKER)
def test_what_the_checker_says_in_words(fault, expected):
    assert fault_in_words(fault).startswith(expected)


def test_the_checker_still_says_it_that_way():
    model = parse("(float[2,4] x) => (float[2,4] y) { [r] y = Relu <foo = 1> (x) }")
    with pytest.raises(amp.ModelError, match="invalid before any conversion: node 'r': Relu has no attribute 'foo' in"):
        amp.transpile(model, prefer="size")


@pytest.mark.parametrize("opset", [1, 5, 6])
def test_an_opset_that_onnx_runtime_does_not_run_is_named(opset):
    model = parse("(float[2,4] x) => (float[2,4] y) { y = Tanh (x) }", opset=opset, ir_version=3)
    report = amp.transpile(model, prefer="size")
    said = f"structure only: the model is of opset {opset}, ONNX Runtime runs 7 and later; export it anew"
    assert report.verdict.startswith(said) or opset == 6
