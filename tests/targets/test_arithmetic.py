"""The table of what a device's kernels compute: its form, and what is asked of it by release and device."""

import dataclasses
import itertools
import pathlib
import re

import onnx
import pytest

from amp_transpiler.passes.device_arithmetic.simulate import rules_of
from amp_transpiler.targets import arithmetic
from amp_transpiler.targets.arithmetic import (
    EXACT_RESULT,
    MEASURED_EVIDENCE,
    UNMEASURED_NOISE,
    WEBGPU_TABLE,
    KernelRow,
    arithmetic_of,
    parsed,
)
from amp_transpiler.targets.kernel_conditions import CONDITIONS
from amp_transpiler.targets.releases import known_releases

RUNS = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu"
FACTS, ROWS = arithmetic._file()
WEB_ROWS = arithmetic._file(WEBGPU_TABLE)[1]
H100 = arithmetic_of("H100", "1.31")
EVIDENCE = MEASURED_EVIDENCE | {"sass", "source", "inferred"}
FORMATS = {("float16", "bfloat16"), ("float16",), ("bfloat16",), ("float32",)}
RELEASES = re.compile(r"(\d+\.\d+)?-(\d+\.\d+)?$")


def label(row):
    return f"{row.operator} {'+'.join(row.formats)} {row.condition}"


# ---- its form ----
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_every_cell_is_known(row):
    assert row.formats in FORMATS
    assert not row.condition or row.condition in CONDITIONS
    assert row.computes in {*rules_of(WEBGPU_TABLE), EXACT_RESULT, "tf32"}
    assert row.sums_in in ("", "float32", "low")
    assert row.noise >= 0.0
    assert row.evidence in EVIDENCE
    assert not row.releases or RELEASES.match(row.releases)
    assert (row.computes == "tf32") <= (row.formats == ("float32",)), "TF32 is a matter of float32 nodes"


def test_every_rule_and_every_condition_has_a_row():
    assert {row.condition for row in ROWS if row.condition} == set(CONDITIONS)
    assert {row.computes for row in [*ROWS, *WEB_ROWS]} - {EXACT_RESULT, "tf32"} == set(rules_of(WEBGPU_TABLE))


@pytest.mark.parametrize("operator", sorted({row.operator for row in ROWS}))
def test_every_operator_is_one_of_onnx_or_of_onnx_runtime(operator):
    in_onnx_domain = operator == "SimplifiedLayerNormalization"  # where ONNX Runtime has put an operator of its own
    assert operator.startswith("com.microsoft::") or onnx.defs.has(operator) or in_onnx_domain


@pytest.mark.parametrize("release", known_releases())
def test_no_row_lies_behind_one_that_always_holds(release):
    """Neither does a condition come twice."""
    for (operator, name), rows in arithmetic_of("H100", release).rows.items():
        conditions = [row.condition for row in rows]
        assert "" not in conditions[:-1], f"{operator} in {name}"
        assert len(set(conditions)) == len(conditions), f"{operator} in {name}"


def test_rows_of_an_operator_stand_together():
    """So that their order, in which conditions are tried, is seen at a glance."""
    groups = [
        operator for operator, _ in itertools.groupby(ROWS, lambda row: (row.operator, row.formats == ("float32",)))
    ]
    assert len(groups) == len(set(groups))


def test_the_head_names_the_device_its_release_and_the_runs():
    assert FACTS["device"] == "NVIDIA H100 80GB HBM3"
    assert FACTS["release"] == "1.31"
    assert set(FACTS["runs"].split()) == {path.name for path in RUNS.glob("*.jsonl")}


HEADER = "operator | formats | condition | computes | sums in | noise | fault | releases | evidence"
TEXT = [
    "# device: A B",
    "# release: 1.2",
    "# see: nothing",
    "",
    HEADER,
    "Abs | both | - | one | - | 0.5 | - | 1.20- | bits",
]


def test_a_table_is_read():
    facts, rows = parsed(TEXT)
    assert facts == {"device": "A B", "release": "1.2"}
    assert rows == (KernelRow("Abs", ("float16", "bfloat16"), "", "one", "", 0.5, "", "1.20-", "bits"),)


def test_a_row_that_misses_a_cell_is_refused():
    with pytest.raises(ValueError, match="Abs has 8 cells instead of 9"):
        parsed([*TEXT[:-1], "Abs | both | - | one | - | 0.5 | - | bits"])


# ---- what is asked of it ----
def never(_condition):
    return False


def always(_condition):
    return True


LOOKUPS = [
    # (operator, format, conditions that hold, the rule; None for an unmeasured kernel)
    ("Sigmoid", "bfloat16", never, "sigmoid_in_steps"),
    ("Sigmoid", "float16", never, "sigmoid_by_complement"),
    ("Sigmoid", "float32", never, "sigmoid_by_complement"),
    ("Gelu", "float16", never, "gelu_by_erf"),
    ("Gelu", "bfloat16", never, "gelu_erf_in_two"),
    ("Gelu", "bfloat16", lambda name: name == "tanh", "gelu_tanh_in_steps"),
    ("ReduceMean", "float16", lambda name: name == "leading or trailing axes", "sum_then_divide"),
    ("ReduceMean", "float16", always, "sums_of_blocks"),
    ("ReduceMean", "float16", never, "one"),
    ("MatMul", "float32", always, "tf32"),
    ("MatMul", "float32", never, None),
    ("Mish", "float16", always, None),
    ("Log", "bfloat16", always, None),
]


@pytest.mark.parametrize(("operator", "name", "holds", "rule"), LOOKUPS)
def test_the_first_row_whose_condition_holds_counts(operator, name, holds, rule):
    row = H100.row(operator, name, holds)
    assert (row and row.computes) == rule


SKIPPED_NORM = "com.microsoft::SkipSimplifiedLayerNormalization"
BY_RELEASE = [
    # (operator, release, the rule in float16)
    (SKIPPED_NORM, "1.24", "sum_of_squares_low"),
    (SKIPPED_NORM, "1.26", "sum_of_squares_low"),
    (SKIPPED_NORM, "1.27", "one"),
    (SKIPPED_NORM, "1.31", "one"),
    ("com.microsoft::QuickGelu", "1.23", "quick_gelu_in_steps"),
    ("com.microsoft::QuickGelu", "1.31", "quick_gelu_in_steps"),
    ("Softplus", "1.17", "softplus_in_steps"),
]


@pytest.mark.parametrize(("operator", "release", "rule"), BY_RELEASE)
def test_a_release_has_its_rows(operator, release, rule):
    row = arithmetic_of("H100", release).row(operator, "float16", never)
    assert (row and row.computes) == rule


NEAREST = [
    # (device, release, is it the measured device, are both the measured ones)
    ("H100", "1.31", True, True),
    ("h100", "1.31", True, True),
    ("NVIDIA H100 80GB HBM3", "1.31", True, True),
    ("H100", "1.30", True, False),
    ("H200", "1.31", False, False),
    ("A100", "1.24", False, False),
    ("H10", "1.31", False, False),
    ("NVIDIA", "1.31", False, False),
    ("80GB", "1.31", False, False),
    ("H100 PCIE", "1.31", False, False),
    ("", "1.31", False, False),
]


@pytest.mark.parametrize(("device", "release", "is_same", "is_measured"), NEAREST)
def test_another_device_or_release_has_the_nearest_rows_and_more_noise(device, release, is_same, is_measured):
    asked = arithmetic_of(device, release)
    assert asked.is_same_device is is_same
    assert asked.is_measured is is_measured
    assert asked.further_noise == (0.0 if is_measured else UNMEASURED_NOISE)
    assert str(asked) == "NVIDIA H100 80GB HBM3, ONNX Runtime 1.31"
    assert asked.row("MatMul", "float16", never) == H100.row("MatMul", "float16", never)


@pytest.mark.parametrize("evidence", sorted(EVIDENCE))
def test_what_is_read_or_assumed_does_not_count_as_measured(evidence):
    row = dataclasses.replace(ROWS[0], evidence=evidence)
    assert row.is_measured is (evidence in ("bits", "probe", "nodes", "models", "kernel"))
