"""Which results of a float32 program and a low one are the same, whatever tool made the low one."""

import pytest

from amp_transpiler.diagnosis.pairs import pair
from tests.diagnosis.programs import converted, model_of, program_of, renamed


def names_of(pairs):
    return {its.name: mine.name for its, mine in pairs.low.items()}, sorted(node.name for node in pairs.unmatched)


TWO = "[a] h = MatMul (x, w) [b] y = Relu (h)"
GELU = "[a] h = MatMul (x, w) [d] i = Div (h, root) [e] j = Erf (i) [f] k = Add (j, one) [g] l = Mul (h, k)"
GELU += " [h] m = Mul (l, half) [o] y = MatMul (m, v)"

# float32 nodes, low nodes from the input `x` in float16 on, float32 result -> low result, nodes without a partner
CASES = {
    "the same names": (TWO, "[a] h = MatMul (x, w16) [b] y = Relu (h)", {"h": "h", "y": "y"}, []),
    "other names": (TWO, "[n0] p = MatMul (x, w16) [n1] y = Relu (p)", {"h": "p", "y": "y"}, []),
    "casts between": (
        TWO,
        "[n0] p = MatMul (x, w16) q = Cast<to=1> (p) r = Cast<to=10> (q) [n1] y = Relu (r)",
        {"h": "p", "y": "y"},
        [],
    ),
    "a node in float32": (
        TWO,
        "q = Cast<to=1> (x) [n0] p = MatMul (q, w) r = Cast<to=10> (p) [n1] y = Relu (r)",
        {"h": "p", "y": "y"},
        [],
    ),
    "a cast through integers more": (
        TWO,
        "[a] h = MatMul (x, w16) i = Cast<to=7> (h) r = Cast<to=10> (i) [b] y = Relu (r)",
        {"h": "h", "y": "y"},
        [],
    ),
    "a cast through integers in both": (
        "[a] h = MatMul (x, w) i = Cast<to=7> (h) j = Cast<to=1> (i) [b] y = Relu (j)",
        "[a] h = MatMul (x, w16) p = Cast<to=7> (h) q = Cast<to=10> (p) [b] y = Relu (q)",
        {"h": "h", "i": "p", "j": "q", "y": "y"},
        [],
    ),
    "branches with other weights, the other way round": (
        "[a] p = MatMul (x, w) [b] q = MatMul (x, v) [c] y = Sub (p, q)",
        "[n0] r = MatMul (x, v16) [n1] s = MatMul (x, w16) [n2] y = Sub (s, r)",
        {"p": "s", "q": "r", "y": "y"},
        [],
    ),
    "branches with other attributes, the other way round": (
        "[a] p = Softmax<axis=0> (x) [b] q = Softmax<axis=1> (x) [c] y = Sub (p, q)",
        "[n0] r = Softmax<axis=1> (x) [n1] s = Softmax<axis=0> (x) [n2] y = Sub (s, r)",
        {"p": "s", "q": "r", "y": "y"},
        [],
    ),
    "branches that names tell apart": (
        "[a] p = Relu (x) [b] q = Relu (x) [c] y = Sub (p, q)",
        "[b] q = Relu (x) [a] p = Relu (x) [c] y = Sub (p, q)",
        {"p": "p", "q": "q", "y": "y"},
        [],
    ),
    "a moved Transpose": (
        "[m] h = MatMul (x, w) [t] i = Transpose (h) [r] j = Relu (i) [o] y = MatMul (w, j)",
        "[m] h = MatMul (x, w16) [r] j = Relu (h) [t2] k = Transpose (j) [o] y = MatMul (w16, k)",
        {"h": "h", "j": "k", "y": "y"},
        ["t"],
    ),
    "a fused norm that returns its sum": (
        "[a] h = MatMul (x, w) [b] s = Add (h, x) [c] n = LayerNormalization (s, g, b) [d] y = MatMul (n, v)",
        (
            "[a] h = MatMul (x, w16) [k] n, , , t = com.microsoft.SkipLayerNormalization (h, x, g16, b16) "
            "[d] y = MatMul (n, v16)"
        ),
        {"h": "h", "s": "t", "n": "n", "y": "y"},
        [],
    ),
    "a fused norm without its sum": (
        "[a] h = MatMul (x, w) [b] s = Add (h, x) [c] n = LayerNormalization (s, g, b) [d] y = MatMul (n, v)",
        "[a] h = MatMul (x, w16) [k] n = com.microsoft.SkipLayerNormalization (h, x, g16, b16) [d] y = MatMul (n, v16)",
        {"h": "h", "n": "n", "y": "y"},
        ["b"],
    ),
    "a fused activation": (
        GELU,
        "[a] h = MatMul (x, w16) [z] p = com.microsoft.Gelu (h) [o] y = MatMul (p, v16)",
        {"h": "h", "m": "p", "y": "y"},
        ["d", "e", "f", "g"],
    ),
    "a fused activation at the start, other names": (
        GELU.replace("[a] h = MatMul (x, w) ", "").replace("(h, ", "(x, "),
        "[n0] p = com.microsoft.Gelu (x) [n1] q = MatMul (p, w16) r = Cast<to=1> (q) y = Cast<to=10> (r)",
        {"m": "p", "y": "q"},
        ["d", "e", "f", "g"],
    ),
    "a cast through integers before what is fused": (
        GELU.replace("[d]", "[r] c = Relu (h) [d]").replace("(h, ", "(c, ").replace("MatMul (m, v)", "Neg (m)"),
        "[n] p = MatMul (x, w16) i = Cast<to=7> (p) r = Cast<to=10> (i) [t] q = Relu (r) y = com.microsoft.Gelu (q)",
        {"h": "p", "c": "q", "y": "y"},
        ["d", "e", "f", "g", "h"],
    ),
    "several nodes between a fused one and an output": (
        GELU.replace("y = MatMul (m, v)", "n = MatMul (m, v) [p] y = Sigmoid (n)"),
        "[n0] p = MatMul (x, w16) [n1] q = com.microsoft.Gelu (p) [n2] r = MatMul (q, v16) [n3] y = Sigmoid (r)",
        {"h": "p", "m": "q", "n": "r", "y": "y"},
        ["d", "e", "f", "g"],
    ),
    "names by chance": (
        "[n0] v0 = MatMul (x, w) [n1] v1 = Relu (v0) [n2] v2 = MatMul (v1, v) [n3] y = Sigmoid (v2)",
        (
            "v0 = Cast<to=1> (x) [n2] v1 = Cast<to=10> (v0) [n0] v2 = MatMul (v1, w16) [n3] v3 = Relu (v2) "
            "[n1] v4 = MatMul (v3, v16) [n4] y = Sigmoid (v4)"
        ),
        {"v0": "v2", "v1": "v3", "v2": "v4", "y": "y"},
        [],
    ),
    "Identity in the low program": (
        TWO,
        "p = Identity (x) [n0] q = MatMul (p, w16) r = Identity (q) [n1] y = Relu (r)",
        {"h": "q", "y": "y"},
        [],
    ),
    "Identity in the float32 program": (
        "i = Identity (x) [a] h = MatMul (i, w) j = Identity (h) [b] y = Relu (j)",
        "[n0] q = MatMul (x, w16) [n1] y = Relu (q)",
        {"h": "q", "y": "y"},
        [],
    ),
    "several results": (
        "[a] p, q = Split<axis=1> (x, sizes) [b] r = Relu (p) [c] y = Mul (r, q)",
        "[n0] e, f = Split<axis=1> (x, sizes) [n1] h = Relu (e) [n2] y = Mul (h, f)",
        {"p": "e", "q": "f", "r": "h", "y": "y"},
        [],
    ),
    "inputs the other way round": (
        "[a] h = MatMul (x, w) [b] i = Add (h, x) [c] y = Exp (i)",
        "[a] h = MatMul (x, w16) [b] i = Add (x, h) [c] y = Exp (i)",
        {"h": "h", "i": "i", "y": "y"},
        [],
    ),
    "an input that is left out": (
        "[a] h = Clip (x, , one) [b] y = Relu (h)",
        "[n0] p = Clip (x, , one16) [n1] y = Relu (p)",
        {"h": "p", "y": "y"},
        [],
    ),
    "an input that only one leaves out": (
        "[a] h = Clip (x, , one) [b] y = Relu (h)",
        "[n0] p = Clip (x, one16) [n1] y = Relu (p)",
        {"y": "y", "h": "p"},
        [],
    ),
    "a constant in place of a result": (
        "[a] h = MatMul (x, w) [b] i = Add (h, h) [c] y = Exp (i)",
        "[n0] p = MatMul (x, w16) [n1] q = Add (p, b16) [n2] r = Neg (q) [n3] y = Exp (r)",
        {"h": "p", "y": "y", "i": "r"},
        [],
    ),
    "another rank": (
        "[a] h = MatMul (x, w) [b] i = Unsqueeze (h, axes) [c] y = Exp (i)",
        "[n0] p = MatMul (x, w16) [n1] y = Exp (p)",
        {"h": "p"},
        ["b", "c"],
    ),
}


def graph(nodes, low=False):
    kind = "float16" if low else "float"
    return f"({kind}[2,4] x) => ({kind}{'' if 'Unsqueeze' in nodes else '[a,b]'} y) {{ {nodes} }}"


@pytest.mark.parametrize("case", CASES)
def test_results_are_paired(case):
    reference, low, expected, unmatched = CASES[case]
    pairs = pair(program_of(graph(reference)), program_of(graph(low, low=True)))
    assert names_of(pairs) == (expected, unmatched)


ENCODER = graph(
    "[q] q = MatMul (x, w) [k] k = MatMul (x, v) [t] kt = Transpose (k) [s] s = MatMul (q, kt) [p] p = Softmax (s)"
    " [c] c = MatMul (p, k) [r] r = Add (c, x) [n] n = LayerNormalization (r, g, b) [f] f = MatMul (n, w)"
    " [e] e = Sigmoid (f) [m] m = Mul (f, e) [o] z = Add (m, r) [l] y = LayerNormalization (z, g, b)"
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("other_names", [False, True])
def test_a_conversion_is_paired_in_full(dtype, other_names):
    model = model_of(ENCODER)
    low = converted(model, dtype)
    pairs = pair(program_of(model), program_of(renamed(low) if other_names else low))
    assert names_of(pairs)[1] == []
    assert len(pairs.low) == 13
    for its, mine in pairs.low.items():
        assert its.producer().op_type == mine.producer().op_type
        if not other_names:
            assert its.producer().name == mine.producer().name


def test_a_fused_conversion_is_paired_around_what_is_fused():
    model = model_of(ENCODER)
    low = converted(model, fuse="contrib")
    operators = {node.op_type for node in low.graph.node}
    assert "SkipLayerNormalization" in operators
    _, unmatched = names_of(pair(program_of(model), program_of(low)))
    assert unmatched == ["o"]


def test_a_choice_is_paired_as_a_whole():
    text = """({kind}[2,4] x, bool t) => ({kind}[2,4] y) {{
        [a] h = MatMul (x, {w})
        [i] z = If (t) <then_branch = g1 () => ({kind}[2,4] p) {{ p = Relu (h) }},
                        else_branch = g2 () => ({kind}[2,4] q) {{ q = Neg (h) }}>
        [b] y = Sigmoid (z)
    }}"""
    reference, low = text.format(kind="float", w="w"), text.format(kind="float16", w="w16")
    pairs = pair(program_of(reference), program_of(renamed(model_of(low))))
    assert names_of(pairs) == ({"h": "n0", "z": "n1", "y": "y"}, [])


def test_outputs_are_the_same_whatever_makes_them():
    pairs = pair(program_of(graph(TWO)), program_of(graph("[n] y = Exp (x)", low=True)))
    assert names_of(pairs) == ({"y": "y"}, ["a"])


def test_programs_without_anything_in_common():
    low = "(float16[2,4] z) => (float16[a,b] q) { [n] q = Exp (z) }"
    assert names_of(pair(program_of(graph(TWO)), program_of(low))) == ({}, ["a", "b"])
