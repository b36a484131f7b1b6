"""Both programs in one: each result as it should be, as the low program has it, and as the low node alone makes it."""

import ml_dtypes
import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.diagnosis.joined import join
from amp_transpiler.diagnosis.pairs import pair
from amp_transpiler.diagnosis.side_by_side import compare_side_by_side
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.dtypes import low_format
from tests.diagnosis.programs import WEIGHTS, converted, model_of, program_of, renamed
from tests.support import array, relative, run

HEAD = "(float[2,4] x) => (float[2,4] y)"
X = array(2, 4, seed=7)


def compared(reference, low, *samples, dtype="float16", **options):
    """Return result -> what is measured of it."""
    first, second = program_of(reference), program_of(low)
    shapes = {value.name: (2, 4) for node in first.model.graph for value in node.outputs}
    joined = join(first, second, pair(first, second))
    feeds = [{"x": sample} for sample in samples or (X,)]
    return compare_side_by_side(joined, shapes, low_format(dtype), feeds, **options)


def far(measured):
    """Return result -> the norms of the own error and of the low program's."""
    return {name: (facts.own.square**0.5, facts.low.square**0.5) for name, facts in measured.items()}


def rounded(values, dtype=np.float16):
    return np.asarray(values).astype(dtype).astype(np.float32)


def norms(reference, own, low):
    """Return name -> what `far` should say, of arrays by name."""
    wide = {name: values.astype(np.float64) for name, values in reference.items()}
    return {
        name: (np.linalg.norm(own[name] - wide[name]), np.linalg.norm(low[name] - wide[name])) for name in reference
    }


def test_own_errors_and_those_of_the_low_program_are_numpys():
    graph = HEAD + " { [a] h = Mul (x, x) [b] i = Add (h, b) [c] j = Sub (i, x) [d] y = Mul (j, g) }"
    low = (
        HEAD
        + """ { z = Cast<to=10> (x) [n0] p = Mul (z, z) [n1] q = Add (p, b16) [n2] r = Sub (q, z)
        [n3] s = Mul (r, g16) y = Cast<to=1> (s) }"""
    )
    b, g = WEIGHTS["b"], WEIGHTS["g"]
    h, i, x16 = X * X, X * X + b, rounded(X)
    j = i - X
    reference = {"h": h, "i": i, "j": j, "y": j * g}
    roundings = {
        "h": rounded(x16 * x16),
        "i": rounded(h + rounded(b)),
        "j": rounded(i - x16),
        "y": rounded(j * rounded(g)),
    }
    p = roundings["h"]
    q = rounded(p + rounded(b))
    r = rounded(q - x16)
    expected = norms(reference, roundings, {"h": p, "i": q, "j": r, "y": rounded(r * rounded(g))})
    measured = far(compared(graph, low))
    assert list(measured) == ["h", "i", "j", "y"]
    for name, values in expected.items():
        assert measured[name] == pytest.approx(values, rel=1e-6), name


def test_a_node_that_is_float32_in_the_low_program_has_the_errors_of_the_casts_before_it():
    graph = HEAD + " { [a] h = Mul (x, x) [b] i = Add (h, b) [c] y = Mul (i, g) }"
    low = (
        HEAD
        + """ { z = Cast<to=10> (x) [a] h = Mul (z, z) o = Cast<to=1> (h) [b] i = Add (o, b)
        k = Cast<to=10> (i) [c] s = Mul (k, g16) y = Cast<to=1> (s) }"""
    )
    b, g, h = WEIGHTS["b"], WEIGHTS["g"], X * X
    p = rounded(rounded(X) * rounded(X))
    i = p + b
    reference = {"h": h, "i": h + b, "y": (h + b) * g}
    roundings = {"h": p, "i": h + b, "y": rounded(rounded(h + b) * rounded(g))}
    expected = norms(reference, roundings, {"h": p, "i": i, "y": rounded(rounded(i) * rounded(g))})
    measured = far(compared(graph, low))
    for name, values in expected.items():
        assert measured[name] == pytest.approx(values, rel=1e-6, abs=1e-12), name


BLOCK = (
    HEAD
    + """ {
    [q] q = MatMul (x, w) [k] k = MatMul (x, v) [t] t = Transpose (k) [s] s = MatMul (q, t) [p] p = Softmax (s)
    [c] c = MatMul (p, k) [r] r = Add (c, x) [n] n = LayerNormalization (r, g, b) [f] f = MatMul (n, w)
    [e] e = Sigmoid (f) [m] m = Mul (f, e) [o] y = Add (m, r)
}"""
)


def with_all_results(model, names):
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    return copy


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_errors_are_those_of_two_runs(dtype):
    model = model_of(BLOCK)
    low = converted(model, dtype)
    measured = compared(model, renamed(low), dtype=dtype)
    assert set(measured) == set("qktspcrnfemy")
    outputs = run(with_all_results(model, list(measured)), {"x": X})
    low_output = run(amp.emulate(low), {"x": X})["y"]
    assert measured["y"].low.error == pytest.approx(relative(outputs["y"], low_output), rel=1e-6)
    for name, facts in measured.items():
        assert facts.low.count == facts.own.count == outputs[name].size
        assert facts.low.norm == pytest.approx(float(np.square(outputs[name].astype(np.float64)).sum()), rel=1e-6)
        assert facts.magnitudes.largest == pytest.approx(np.abs(outputs[name]).max(), rel=1e-6)


@pytest.mark.parametrize(("dtype", "numpy"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_the_rounding_of_a_result_is_its_own_whatever_the_low_program_does(dtype, numpy):
    measured = compared(
        HEAD + " { [a] y = Mul (x, g) }", converted(model_of(HEAD + " { [a] y = Mul (x, g) }"), dtype), dtype=dtype
    )
    y = X * WEIGHTS["g"]
    assert measured["y"].rounding == pytest.approx(float(np.square((rounded(y, numpy) - y).astype(np.float64)).sum()))


@pytest.mark.parametrize("limit", [1, 64, 200])
def test_pieces_measure_the_same(limit):
    low = converted(model_of(BLOCK))
    assert compared(BLOCK, low, limit=limit) == compared(BLOCK, low)


def test_samples_add_up():
    low = converted(model_of(BLOCK))
    other = array(2, 4, seed=8)
    first, second = compared(BLOCK, low, X), compared(BLOCK, low, other)
    both = compared(BLOCK, low, X, other)
    assert both == {name: first[name] + second[name] for name in first}
    assert both["y"].low.count == 16


def test_inputs_and_outputs_may_be_low():
    low = "(float16[2,4] x) => (float16[2,4] y) { [a] h = Mul (x, x) [b] y = Add (h, b16) }"
    graph = HEAD + " { [a] h = Mul (x, x) [b] y = Add (h, b) }"
    b, h = WEIGHTS["b"], X * X
    p = rounded(rounded(X) * rounded(X))
    roundings = {"h": p, "y": rounded(h + rounded(b))}
    expected = norms({"h": h, "y": h + b}, roundings, {"h": p, "y": rounded(p + rounded(b))})
    measured = far(compared(graph, low))
    for name, values in expected.items():
        assert measured[name] == pytest.approx(values, rel=1e-6), name


@pytest.mark.parametrize(("opset", "low_opset"), [(13, 18), (18, 13), (17, 17)])
def test_opsets_may_differ(opset, low_opset):
    graph = HEAD + " { [a] h = MatMul (x, w) [b] i = Softmax (h) [c] y = Add (i, b) }"
    low = (
        HEAD
        + """ { z = Cast<to=10> (x) [a] h = MatMul (z, w16) [b] i = Softmax (h) [c] s = Add (i, b16)
        y = Cast<to=1> (s) }"""
    )
    measured = compared(model_of(graph, opset=opset), model_of(low, opset=low_opset))
    assert far(measured) == far(compared(graph, low))


def test_the_programs_are_not_changed():
    first, second = program_of(BLOCK), program_of(converted(model_of(BLOCK)))
    before = [program.to_onnx().SerializeToString(deterministic=True) for program in (first, second)]
    joined = join(first, second, pair(first, second))
    assert [program.to_onnx().SerializeToString(deterministic=True) for program in (first, second)] == before
    names = [value.name for node in joined.program.model.graph for value in node.outputs if value.name]
    assert len(set(names)) == len(names)
    assert [value.name for value in joined.program.model.graph.inputs] == ["x"]


def test_what_is_compared_lies_together():
    first, second = program_of(BLOCK), program_of(converted(model_of(BLOCK)))
    joined = join(first, second, pair(first, second))
    nodes = list(joined.program.model.graph)
    place = {value.name: index for index, node in enumerate(nodes) for value in node.outputs}
    far_apart = max(max(map(place.get, triple.names)) - min(map(place.get, triple.names)) for triple in joined.triples)
    assert far_apart < len(nodes) / 4


def test_a_result_has_another_shape():
    graph = HEAD + " { [a] h = Mul (x, g) [b] y = Transpose (h) }".replace("[2,4] y", "y")
    low = HEAD + " { z = Cast<to=10> (x) [a] h = Mul (z, g16) [b] i = Transpose<perm=[0,1]> (h) y = Cast<to=1> (i) }"
    facts = compared(graph.replace("float[2,4] y", "float[4,2] y"), low)["y"]
    assert not facts.low.has_shape
    assert facts.low.error == float("inf")


LATER = """(float[1,1,2,2] x, float[4] s) => (float[a,b,c,d] y) {
    z = Cast<to=10> (x) [a] h = Relu (z) k = Cast<to=1> (h) [b] y = Resize (k, , s)
}"""


def test_an_opset_that_cannot_be_raised_is_an_error():
    graph = "(float[1,1,2,2] x, float[4] s) => (float[a,b,c,d] y) { [a] h = Relu (x) [b] y = Resize (h, s) }"
    first, second = program_of(model_of(graph, opset=10)), program_of(model_of(LATER, opset=13))
    with pytest.raises(ModelError, match=r"one is of opset 13, the other cannot be raised to it: .*Resize"):
        join(first, second, pair(first, second))
