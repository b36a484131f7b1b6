"""Sensitivities: what rounding adds to outputs, predicted by a reverse sweep and compared with what is computed."""

import math

import numpy as np
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import bodies
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.targets import TARGETS
from amp_transpiler.verification import fixed_sample, sensitivity
from amp_transpiler.verification.sensitivity import collect_evidence, low_forms, measure_sensitivity
from tests.support import array, parse

X = array(8, 16)
W, V = array(16, 16, seed=1), array(16, 16, seed=2)


def program(text, **weights):
    loaded = load(parse(text, **weights))
    PassManager([NameNodes()], typed=False)(loaded.model)
    propagate_types(loaded.model)
    return loaded


def swept(loaded, feeds=None, low=FLOAT16, **options):
    forms = low_forms(loaded.model, TARGETS["cuda"], low)
    return measure_sensitivity(loaded, low, forms, [{"x": X} if feeds is None else feeds], **options)


def rounded(values, low=FLOAT16):
    return values.astype(low.numpy).astype(np.float32)


def relative(exact, other):
    return float(np.linalg.norm(exact - other) / np.linalg.norm(exact))


def test_one_layer_by_hand():
    """The error of a product is that of its result and of its weight; its input's is that of the cast."""
    errors = swept(program("(float[8,16] x) => (float[8,16] y) { y = MatMul(x, w) }", w=W), draws=64).by_output["y"]
    low_x, low_w = rounded(X), rounded(W)
    before = low_x @ low_w
    rounding_error = math.hypot(relative(X @ W, X @ W + rounded(before) - before), relative(X @ W, X @ low_w))
    [(name, error)] = errors.nodes.items()
    assert error**0.5 == pytest.approx(rounding_error, rel=0.05)
    assert errors.casts["x"] ** 0.5 == pytest.approx(relative(X @ W, low_x @ W), rel=0.1)
    assert errors.alone[name] == pytest.approx(error + errors.casts["x"], rel=0.05)


DEEP = """(float[8,16] x) => (float[8,16] y) {
    h = MatMul(x, w) r = Relu(h) n = LayerNormalization(r, s) z = MatMul(n, v) t = Tanh(z) y = Add(t, x) }"""


def deep():
    return program(DEEP, w=W, v=V, s=np.linspace(0.5, 1.5, 16, dtype=np.float32))


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16])
def test_all_contributions_add_up_to_the_error_of_the_whole(low):
    """With casts of the input only: everything else is low."""
    s = np.linspace(0.5, 1.5, 16, dtype=np.float32)

    def run(to):
        x = to(X)
        r = to(np.maximum(to(x @ to(W)), 0.0))
        n = (r - r.mean(1, keepdims=True)) / np.sqrt(r.var(1, keepdims=True) + 1e-5)
        return to(to(np.tanh(to(to(n * to(s)) @ to(V)))) + x)

    true = relative(run(lambda v: v), run(lambda v: rounded(v, low)))
    errors = swept(deep(), low=low, draws=16).by_output["y"]
    predicted = math.sqrt(sum(errors.nodes.values()) + errors.casts["x"])
    assert predicted == pytest.approx(true, rel=0.4)  # one draw of the roundings, of few numbers


def test_pieces_find_the_same():
    whole, cut = swept(deep()).by_output["y"], swept(deep(), limit=1.0).by_output["y"]
    for field in ("nodes", "alone", "casts"):
        assert getattr(cut, field) == pytest.approx(getattr(whole, field), rel=1e-4)


def test_an_operator_that_adds_no_rounding_adds_nothing():
    loaded = program("(float[8,16] x) => (float[16,8] y) { t = Transpose(x) y = Relu(t) }")
    errors = swept(loaded).by_output["y"]
    assert all(error == 0.0 for error in errors.nodes.values())
    assert errors.casts["x"] > 0.0


def test_each_output_has_its_own_errors():
    loaded = program("(float[8,16] x) => (float[8,16] y, float[8,16] z) { y = Exp(x) z = MatMul(x, w) }", w=W)
    sweep = swept(loaded).by_output
    assert set(sweep) == {"y", "z"}
    felt = {output: {name for name, error in of_output.nodes.items() if error} for output, of_output in sweep.items()}
    assert len(felt["y"]) == len(felt["z"]) == 1
    assert not felt["y"] & felt["z"]


def test_a_cast_is_not_felt_where_a_value_leaves_the_program():
    """The output stays float32 whoever else reads it low."""
    sweep = swept(
        program("(float[8,16] x) => (float[8,16] h, float[8,16] y) { h = MatMul(x, w) y = MatMul(h, v) }", w=W, v=V)
    ).by_output
    assert sweep["y"].casts["h"] > 0.0
    assert not sweep["h"].casts.get("h")
    assert not sweep["y"].casts.get("y")
    assert all(max(of_output.nodes.values()) > 0.0 for of_output in sweep.values())


def test_a_cast_is_felt_reader_by_reader():
    """Each reader feels its own part, and an operator that has no low form none."""
    errors = swept(program("(float[8,16] x) => (float[8,16] y) { h = MatMul(x, w) z = MatMul(h, v) y = Add(h, z) }",
                           w=W, v=V)).by_output["y"]  # fmt: skip
    parts = {place.split("\n")[0]: 0.0 for place in errors.reads}
    assert set(parts) == {"x", "h", "z"}
    felt = sorted(error for place, error in errors.reads.items() if place.startswith("h\n"))
    assert len(felt) == 2
    assert errors.casts["h"] == pytest.approx(sum(felt), rel=0.5)
    assert min(felt) > 0.0


def test_many_outputs_share_sweeps():
    text = " ".join(f"y{i} = Exp(x)" for i in range(9))
    outputs = ", ".join(f"float[8,16] y{i}" for i in range(9))
    sweep = swept(program(f"(float[8,16] x) => ({outputs}) {{ {text} }}")).by_output
    assert len(sweep) == 9
    assert all(of_output.casts["x"] > 0.0 for of_output in sweep.values())


def test_labels_are_felt_through_the_scores_they_come_from():
    loaded = program(
        "(float[8,16] x) => (int32[8] y) { s = MatMul(x, w) a = ArgMax<axis=1, keepdims=0>(s) y = Cast<to=6>(a) }", w=W
    )
    errors = swept(loaded).by_output["y"]
    assert errors.casts["x"] > 0.0
    assert errors.casts["s"] > 0.0


def test_what_overflows_is_infinite():
    loaded = program("(float[8,16] x) => (float[8,16] y) { h = Mul(x, c) y = Tanh(h) }", c=np.float32(1e6))
    errors = swept(loaded).by_output["y"]
    assert any(math.isinf(error) for error in errors.nodes.values()) or errors.casts["h"] == 0.0
    loaded = program(
        "(float[8,16] x) => (float[8,16] y) { h = MatMul(x, w) y = Mul(h, c) }", w=1e5 * W, c=np.float32(1e-5)
    )
    errors = swept(loaded).by_output["y"]
    assert math.isinf(errors.casts["h"])


def test_the_gain_of_an_operator_without_a_rule_is_measured():
    feeds = {"x": np.resize(X, (16, 2, 2)) + 2 * np.eye(2, dtype="f")}
    text = "(float[16,2,2] x) => (float[16] y) { h = Relu(x) y = Det(h) }"
    loaded = program(text)
    sweep = swept(loaded, feeds)
    relu = next(node.name for node in loaded.model.graph if node.op_type == "Relu")
    assert "has no gradient rule: the gain was measured" in sweep.estimated[relu]
    assert 1e-6 < sweep.by_output["y"].casts["x"] ** 0.5 < 1e-3


BRANCH = """(float[8,16] x, bool b) => (float[8,16] y) {
    y = If(b) <then_branch = yes () => (float[8,16] p) { p = MatMul(x, w) },
              else_branch = no () => (float[8,16] q) { q = Exp(x) }> }"""


@pytest.mark.parametrize(("taken", "operator"), [(True, "MatMul"), (False, "Exp")])
def test_the_branch_that_is_taken_is_weighed_node_by_node(taken, operator):
    loaded = program(BRANCH, w=W)
    errors = swept(loaded, {"x": X, "b": np.array(taken)}).by_output["y"]
    names = {node.name: node.op_type for _, body in bodies(next(iter(loaded.model.graph))) for node in body}
    assert [names[name] for name in errors.nodes] == [operator]


LOOP = """(float[8,16] x) => (float[8,16] y) {
    n = Constant<value = int64 {3}>() t = Constant<value = bool {1}>()
    y = Loop(n, t, x) <body = step (int64 i, bool c, float[8,16] a) => (bool d, float[8,16] e) {
        d = Identity(c) m = MatMul(a, w) e = Tanh(m) }> }"""


def test_the_nodes_of_a_loop_share_what_its_body_adds():
    sweep = swept(program(LOOP, w=0.2 * W))
    errors = sweep.by_output["y"].nodes
    assert len(errors) == 2
    assert len(set(errors.values())) == 1
    assert 1e-5 < sum(errors.values()) ** 0.5 < 1e-2
    assert all("an equal share of what the body of Loop" in reason for reason in sweep.estimated.values())


def test_evidence_has_ranges_of_all_samples_and_errors():
    samples = [(f"sample {index}", {"x": (1.0 + index) * X}) for index in range(5)]
    sweep = collect_evidence(deep(), TARGETS["cuda"], FLOAT16, samples, given=True)
    assert sweep.samples == tuple(name for name, _ in samples)
    assert sweep.given
    assert sweep.ranges["h"].sample == "sample 4"
    assert sweep.node_errors == sweep.node_errors_by_output["y"]
    assert 0.0 < sweep.predicted(sweep.node_errors) < 1e-2


STRAIGHT = "(float[N,16] x) => (float[N,16] y) { h = MatMul(x, w) y = Relu(h) }"
BRANCHED = """(float[N,16] x, bool c) => (float[N,16] y) {
    h = MatMul(x, w)
    y = If(c) <then_branch = a () => (float[N,16] p) { p = Relu(h) },
               else_branch = b () => (float[N,16] q) { q = Tanh(h) }> }"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(STRAIGHT, 1), (BRANCHED, 2)],
    ids=["once for ranges and errors", "again where a branch took the place of an If"],
)
def test_a_sample_is_surveyed(monkeypatch, text, expected):
    surveyed, survey = [], fixed_sample.survey

    def counted(loaded, *further):
        surveyed.append(loaded)
        return survey(loaded, *further)

    monkeypatch.setattr(fixed_sample, "survey", counted)
    monkeypatch.setattr("amp_transpiler.verification.calibrate.survey", counted)
    sample = ("sample 1", {"x": X, "c": np.array(True)} if "bool" in text else {"x": X})
    sweep = collect_evidence(program(text, w=W), TARGETS["cuda"], FLOAT16, [sample], given=True)
    assert len(surveyed) == expected
    assert sweep.node_errors


def test_an_output_of_few_elements_is_exact():
    """Each element is swept on its own, so signs count: two errors that cancel add nothing."""
    text = "(float[3] x) => (float[1] y) { y = ReduceSum(x) }"
    feeds = {"x": np.array([1.0 + 2.0**-12, -1.0 - 2.0**-12, 2.0], np.float32)}
    errors = swept(program(text), feeds).by_output["y"]
    assert errors.casts["x"] == pytest.approx(0.0, abs=1e-12)


def test_rounding_before_a_quantized_product_is_felt_behind_it():
    """No gradient passes through integers: the gain from the values before them is measured."""
    text = """(float[64,128] x) => (float[64,16] y) {
        h = Relu(x) q, s, z = DynamicQuantizeLinear(h) m = MatMulInteger(q, w, z) f = Cast<to=1>(m) y = Mul(f, s) }"""
    loaded = program(text, w=np.random.default_rng(1).integers(0, 255, (128, 16)).astype(np.uint8))
    feeds = {"x": array(64, 128)}
    errors = swept(loaded, feeds)

    def run(h):
        s = h.max() / np.float32(255.0)
        return np.rint(h / s) * s

    h = np.maximum(feeds["x"], 0.0)
    weights = next(iter(loaded.model.graph.initializers.values())).const_value.numpy().astype(np.float64)
    true = relative(run(h) @ weights, run(rounded(h)) @ weights)
    assert true / 20.0 < errors.by_output["y"].casts["h"] ** 0.5 < 5.0 * true  # an estimate: rounding is felt in steps
    assert any("the gain was measured" in reason for reason in errors.estimated.values())


def test_an_integer_that_is_an_output_and_is_read_too():
    text = """(float[8,16] x) => (float[128] y, int64[2] s) {
        s = Shape(x) p = ReduceProd<keepdims=1>(s) r = Reshape(x, p) y = Exp(r) }"""
    errors = swept(program(text)).by_output
    assert set(errors) == {"y"}
    assert errors["y"].casts["x"] > 0.0


def test_of_a_program_with_large_results_the_first_and_the_last_sample_are_swept_once(monkeypatch):
    settled, settle = [], sensitivity.settle

    def counted(loaded, feeds, *further):
        settled.append(float(feeds["x"][0, 0]))
        return settle(loaded, feeds, *further)

    monkeypatch.setattr(sensitivity, "_LARGE", 0)
    monkeypatch.setattr(sensitivity, "settle", counted)
    loaded = deep()
    samples = [{"x": np.full_like(X, number)} for number in (1.0, 2.0, 3.0)]
    measured = measure_sensitivity(loaded, FLOAT16, low_forms(loaded.model, TARGETS["cuda"], FLOAT16), samples)
    assert settled == [1.0, 3.0]
    assert all(measured.by_output["y"].alone.values())


def test_of_few_elements_behind_large_results_as_many_samples_are_swept_as_make_four_sweeps(monkeypatch):
    settled, settle = [], sensitivity.settle

    def counted(loaded, feeds, *further):
        settled.append(float(feeds["x"][0, 0]))
        return settle(loaded, feeds, *further)

    monkeypatch.setattr(sensitivity, "PIECE", 0)
    monkeypatch.setattr(sensitivity, "settle", counted)
    text = "(float[2,16] x) => (float[2,1] y) { h = MatMul(x, w) y = ReduceMax <keepdims = 1> (h, axes) }"
    loaded = program(text, w=W, axes=np.array([1]))
    samples = [{"x": np.full((2, 16), number, np.float32)} for number in (1.0, 2.0, 3.0)]
    measure_sensitivity(loaded, FLOAT16, low_forms(loaded.model, TARGETS["cuda"], FLOAT16), samples)
    assert settled == [1.0, 2.0]  # two elements each
