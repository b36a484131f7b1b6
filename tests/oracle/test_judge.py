"""The oracle's judgement of a file: validity, opening, counts, distances."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.oracle.counting import count_casts, low_nodes
from tests.oracle.judge import CannotRun, checker_fault, compare, judge_values, opening_fault, original_outputs

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
SOURCE = f"{HEAD} g (float[3] x) => (float[3] y) {{ s = Exp (x) y = Mul (s, s) }}"
_NODES = "h = Cast <to = 10> (x) s = Exp (h) t = Mul (s, s) y = Cast <to = 1> (t)"
LOW = f"{HEAD} g (float[3] x) => (float[3] y) {{ {_NODES} }}"
X = np.array([0.5, 1.5, 3.0], np.float32)


@pytest.fixture
def files(tmp_path):
    """Return a function that writes models, and inputs beside them."""

    def write(**texts):
        for name, text in texts.items():
            onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
        np.savez(tmp_path / "inputs.npz", x=X, unknown=X)
        return [*(tmp_path / f"{name}.onnx" for name in texts), tmp_path / "inputs.npz"]

    return write


def test_values_of_a_low_file(files):
    source, low, inputs = files(source=SOURCE, low=LOW)
    values = judge_values(source, low, inputs)
    s = np.exp(X.astype(np.float16).astype(np.float32)).astype(np.float16).astype(np.float32)
    wanted, got = np.exp(X) ** 2, (s * s).astype(np.float16).astype(np.float32)
    assert values.errors == {"y": pytest.approx(np.linalg.norm(got - wanted) / np.linalg.norm(wanted), rel=1e-3)}
    assert (values.elements, values.differing) == (3, 0.0)
    assert 0.0 < values.worst < 2e-3


def test_an_original_that_does_not_run_is_no_judgement(files):
    broken = f"{HEAD} g (float[3] x) => (float[3] y) {{ n = Constant <value = int64[1] {{7}}> () y = Reshape (x, n) }}"
    source, inputs = files(source=broken)
    with pytest.raises(CannotRun, match="reshape"):
        original_outputs(source, inputs)


BROKEN = {
    "two types": f"{HEAD} g (float[3] x, float16[3] z) => (float[3] y) {{ y = Add (x, z) }}",
    "unknown name": f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Add (x, nowhere) }}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_noticed(name, files):
    path, _ = files(broken=BROKEN[name])
    assert checker_fault(path)
    assert opening_fault(path)
    assert opening_fault(path, optimized=False)


def test_good_files_are_good(files):
    lacking = f"{HEAD} g (bfloat16[3] x) => (bfloat16[3] y) {{ y = Erf (x) }}"  # valid, but the CPU has no such kernel
    for path in files(low=LOW, lacking=lacking)[:-1]:
        assert (checker_fault(path), opening_fault(path)) == ("", "")


COUNTS = [
    (SOURCE, [], 0),
    (LOW, ["Exp", "Mul"], 2),
    # The type of s is only inferred; Shape does no work; the body of the If reads a low value from outside.
    (
        f"""{HEAD} g (float16[3] x, bool c) => (float16[3] y, int64[1] n) {{
          s = Neg (x)  n = Shape (s)
          y = If (c) <then_branch = a () => (float16[3] p) {{ p = Abs (s) }},
                      else_branch = b () => (float16[3] q) {{
            w = Cast <to = 1> (s) u = Exp (w) q = Cast <to = 10> (u) }}>
        }}""",
        ["Neg", "Abs"],
        2,
    ),
    (f"{HEAD} g (bfloat16[3] x) => (bfloat16[3] y) <bfloat16[1] w = {{1}}> {{ y = Mul (x, w) }}", ["Mul"], 0),
]


@pytest.mark.parametrize(("text", "low", "casts"), COUNTS)
def test_counts_come_from_the_types_in_the_file(text, low, casts):
    model = onnx.parser.parse_model(text)
    assert (low_nodes(model), count_casts(model)) == (low, casts)


def test_low_nodes_that_do_not_count():
    model = onnx.parser.parse_model(LOW)
    assert low_nodes(model, lambda node: node.op_type != "Exp") == ["Mul"]


ONES = np.ones(4, np.float32)
COMPARISONS = [
    (ONES, ONES, 0.0, 0.0),
    (ONES, (ONES * 1.5).astype(np.float16), 0.5, 0.0),
    (ONES, np.array([1, 1, 1, np.inf], np.float32), math.inf, 0.0),
    (np.array([1, np.inf], np.float32), np.array([1, 5], np.float32), 0.0, 0.0),
    (ONES, ONES[:3], math.inf, 0.0),
    (ONES, ONES.astype(np.int64), math.inf, 0.0),
    (np.zeros(2, np.float32), np.zeros(2, np.float32), 0.0, 0.0),
    (np.zeros(2, np.float32), ONES[:2], math.inf, 0.0),
    ([ONES, 2 * ONES], [ONES, 3 * ONES], math.sqrt(4 / 20), 0.0),
    ([ONES], [ONES, ONES], math.inf, 0.0),
    (np.array([1, 2, 3, 4]), np.array([1, 2, 4, 3]), 0.0, 0.5),
    (np.array(["a", "b"]), np.array(["a", "c"]), 0.0, 0.5),
    ([{1: 0.5, 2: 0.25}], [{1: 0.5, 2: 0.5}], math.sqrt(0.0625 / 0.3125), 0.0),
    (None, None, 0.0, 0.0),
]


@pytest.mark.parametrize(("wanted", "got", "error", "differing"), COMPARISONS)
def test_comparison(wanted, got, error, differing):
    values = compare({"y": wanted}, {"y": got})
    assert values.worst == pytest.approx(error)
    assert values.differing == differing
