"""The rules of `diagnosis/blame.py`, each on a graph in which it finds the node that was made wrong."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.diagnosis.fault_path import fault_path, where_absorbed
from tests.diagnosis.programs import program_of
from tests.support import array, parse

CONSTANTS = {
    "big": np.float32(1e4),
    "small": np.float32(1e-5),
    "tiny": np.float32(1e-7),
    "back": np.float32(1e8),
    "thousand": np.float32(1000.0),
    "minus": np.float32(-1e4),
    "milli": np.float32(1e-3),
    "ten": np.float32(10.0),
    "half": np.float32(0.5),
    "one": np.float32(1.0),
    "w": array(4, 4, seed=1),
    "v": array(4, 4, seed=2),
    "wrong": array(4, 4, seed=3),
    "table": np.arange(8192, dtype=np.float32).reshape(2048, 4)[::-1].copy(),
}
X = array(2, 4, low=0.5, scale=1.0)
MASK = np.array([[1, 1, 0, 1], [1, 0, 0, 1]], np.float32)


def model_of(nodes, low=False):
    words = set(nodes.replace("(", " ").replace(")", " ").replace(",", " ").split())
    weights = {name: values for name, values in CONSTANTS.items() if name in words}
    with np.errstate(over="ignore"):
        weights |= {f"{n}16": v.astype(np.float16) for n, v in CONSTANTS.items() if f"{n}16" in words}
    start = "z = Cast<to=10> (x) " if low else ""
    return parse(f"(float[2,4] x) => (float[2,4] y) {{ {start}{nodes} }}", **weights)


def diagnosed(nodes, low=None, x=X, **options):
    low = None if low is None else model_of(low, low=True)
    return amp.debug(model_of(nodes), low, inputs={"x": x}, **{"cure": False, **options})


# float32 nodes, low nodes (None: a conversion) -> the guilty node, its fault, words of the reason
CASES = {
    # 1. an output is infinite
    "an overflow": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] t = Abs (s) [d] y = Sqrt (t)",
        None,
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    "the first of several overflows": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] y = Mul (s, s)",
        None,
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    "two overflows beside each other": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] t = Mul (h, big) [d] u = Add (s, t) [e] y = Relu (u)",
        None,
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    "a float32 result that is cast down": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] t = Mul (s, tiny) [d] y = Relu (t)",
        (
            "[a] h = Mul (z, big16) i = Cast<to=1> (h) [b] s = Mul (i, i) k = Cast<to=10> (s) "
            "[c] t = Mul (k, small16) [d] r = Relu (t) y = Cast<to=1> (r)"
        ),
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    "a logarithm of what vanished": (
        "[a] h = Mul (x, small) [b] i = Mul (h, small) [c] j = Abs (i) [d] k = Log (j) [e] y = Mul (k, half)",
        None,
        ("b", "vanishing", "become zero"),
    ),
    "a quotient of what vanished": (
        "[a] h = Mul (x, small) [b] i = Mul (h, milli) [d] j = Div (h, i) [e] y = Relu (j)",
        None,
        ("b", "vanishing", "become zero"),
    ),
    # 2. something worse than rounding
    "numbers that vanish": (
        "[a] h = Mul (x, small) [b] i = Mul (h, h) [c] j = Mul (i, back) [d] y = Relu (j)",
        None,
        ("b", "vanishing", "become zero"),
    ),
    "another constant": (
        "[a] h = MatMul (x, w) [b] i = Sigmoid (h) [c] y = MatMul (i, v)",
        "[a] h = MatMul (z, w16) [b] i = Sigmoid (h) [c] r = MatMul (i, wrong16) y = Cast<to=1> (r)",
        ("c", "constant", "it reads 'v', which has other numbers"),
    ),
    "two other constants": (
        "[a] h = MatMul (x, w) [b] i = Sigmoid (h) [c] y = MatMul (i, v)",
        "[a] h = MatMul (z, wrong16) [b] i = Sigmoid (h) [c] r = MatMul (i, wrong16) y = Cast<to=1> (r)",
        ("a", "constant", "it reads 'w', which has other numbers"),
    ),
    # 3. infinite numbers that become finite
    "an infinity that a quotient absorbs": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] t = Reciprocal (s) [d] u = Mul (t, back) [e] y = Relu (u)",
        None,
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    "an infinity that is no largest number any more": (
        "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] i = ArgMax<axis=1, keepdims=0> (s) [d] y = Gather (w, i)",
        None,
        ("b", "overflow", "float16 ends at 65,504"),
    ),
    # 4. rounding
    "a sum that rounds": (
        "[a] h = Add (x, thousand) [b] i = Sub (h, thousand) [c] y = MatMul (i, w)",
        None,
        ("a", "rounding", "its rounding is"),
    ),
    "a wrong cast": (
        "[a] h = Mul (x, ten) [b] i = Mul (h, h) [c] y = MatMul (i, v)",
        (
            "[a] h = Mul (z, ten16) k = Cast<to=6> (h) l = Cast<to=10> (k) [b] i = Mul (l, l) [c] r = MatMul (i, v16) "
            "y = Cast<to=1> (r)"
        ),
        ("b", "rounding", "on the right inputs its result is"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_guilty_node(case):
    nodes, low, (node, fault, words) = CASES[case]
    diagnosis = diagnosed(nodes, low)
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == (node, fault)
    assert words in diagnosis.guilty.why
    assert diagnosis.path[0] == node
    assert diagnosis.guilty == diagnosis.suspects[0]
    suspects = [suspect.node for suspect in diagnosis.suspects]
    assert len(suspects) == len(set(suspects))


HARMLESS = {
    "a mask": """[a] h = Sub (one, x) [b] k = Mul (h, minus) [c] m = Mul (k, big) [s] s = MatMul (x, w)
        [d] t = Add (s, m) [e] y = Softmax (t)""",
    "a saturated Sigmoid": "[a] h = Mul (x, big) [b] s = Mul (h, big) [c] y = Sigmoid (s)",
}


@pytest.mark.parametrize("case", HARMLESS)
def test_infinities_that_are_meant_are_nobodys_fault(case):
    diagnosis = diagnosed(HARMLESS[case], x=MASK)
    assert diagnosis.guilty is None
    assert any(row.infinite for row in diagnosis.nodes)


def test_bfloat16_rounds_where_float16_overflows():
    nodes = "[a] h = Mul (x, big) [b] s = Mul (h, h) [c] t = Add (s, thousand) [d] y = Sub (t, s)"
    half, brain = diagnosed(nodes), diagnosed(nodes, dtype="bfloat16")
    assert (half.guilty.node, half.guilty.fault) == ("b", "overflow")
    assert brain.guilty.fault == "rounding"
    assert brain.guilty.node in ("b", "c")


def test_bfloat16_rounds_a_sum():
    diagnosis = diagnosed("[a] h = Add (x, thousand) [b] i = Sub (h, thousand) [c] y = MatMul (i, w)", dtype="bfloat16")
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("a", "rounding")


def test_indices_that_are_rounded():
    nodes = "[a] h = Mul (x, thousand) [b] i = Cast<to=7> (h) [c] y = GatherElements (table, i)"
    low = "[a] h = Mul (z, thousand16) [b] i = Cast<to=7> (h) [c] k = GatherElements (table16, i) y = Cast<to=1> (k)"
    x = np.float32(1.0) + X
    diagnosis = diagnosed(nodes, low, x=x)
    assert diagnosis.guilty is None or diagnosis.guilty.node == "a"


# ---- the path ----

PATH = program_of(
    parse(
        """(float[2,4] x) => (float[2,4] y, float[2,4] z) {
        [a] a = Exp (x) [b] b = Neg (a) [c] c = Abs (a) [d] d = Sqrt (c) [e] y = Add (b, d) [f] z = Exp (b) }"""
    )
)


class Row:
    def __init__(self, error=0.0, infinite=0.0):
        self.error, self.infinite = error, infinite


def test_the_path_leads_through_what_is_wrong():
    rows = {name: Row() for name in "abcdef"}
    rows |= {name: Row(error=1.0) for name in "acde"}
    assert fault_path(PATH, rows, "a", 0.1) == ("a", "c", "d", "e")
    rows |= {name: Row() for name in "cde"} | {name: Row(infinite=0.5) for name in "bf"}
    assert fault_path(PATH, rows, "a", 0.1) == ("a", "b", "f")


def test_the_path_of_an_output_and_of_a_node_that_is_not_there():
    assert fault_path(PATH, {}, "e", 0.1) == ("e",)
    assert fault_path(PATH, {}, "gone", 0.1) == ()


def test_where_an_infinity_is_absorbed():
    rows = {"a": Row(infinite=1.0), "b": Row(infinite=0.5), "c": Row(error=1.0), "d": Row(error=1.0)}
    assert where_absorbed(rows, ("a", "b", "c", "d")) == "c"
    assert where_absorbed(rows, ("a", "b")) is None
    assert where_absorbed(rows, ("c", "d")) is None
