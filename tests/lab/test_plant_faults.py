"""Planted faults: each kind bites in 16 bits only, its truth names nodes that are there, and a draw repeats."""

import collections
import json
import types

import numpy as np
import onnx
import onnx.parser
import pytest

import plant_faults
import score_debug
from planted_faults import planting, training
from planted_faults.editing import Editor, name_nodes
from planted_faults.foreign import TOOLS, renamed
from planted_faults.kinds import KINDS
from planted_faults.planting import LIMITS, draw_case, write
from planted_faults.rounding import Switched, first_alarm, float_nodes, rounded, smallest_cure
from planted_faults.running import error_between, low_outputs, outputs_of
from planted_faults.sources import Source, sources

SMALL = [[Source("mlp"), Source("cnn"), Source("transformer")]]
SQUARE = """<ir_version: 10, opset_import: ["": 22]> g (float[2,8] x) => (float[2,8] y)
    <float up = {500}, float down = {5e-6}>
    { [a] s = Mul (x, up) [b] q = Mul (s, s) [c] r = Mul (q, down) [d] t = Tanh (r) [e] y = Add (t, x) }"""


@pytest.fixture(scope="module")
def cases():
    return {kind: draw_case(kind, (36, 1), SMALL) for kind in KINDS}


def number(error):
    return float("inf") if error == "infinite" else error


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_bites_in_16_bits_only(cases, kind):
    case, truth = cases[kind], cases[kind].truth
    onnx.checker.check_model(case.float32, full_check=True)
    reference = outputs_of(case.float32, case.sample)
    assert all(np.isfinite(array).all() for array in reference.values())
    bites = truth["error_on_device"] if KINDS[kind].on_device else truth["error_without"]
    assert number(bites) > truth["limit"] == LIMITS[truth["dtype"]]
    assert (case.low is not None) == truth["foreign"]
    if case.low is not None:
        error = error_between(reference, low_outputs(case.low, case.sample))
        assert error == pytest.approx(number(truth["error_without"]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_names_nodes_of_the_models(cases, kind):
    case, truth = cases[kind], cases[kind].truth
    names = [node.name for node in case.float32.graph.node]
    assert len(names) == len(set(names))
    assert 1 <= len(truth["guilty"]) <= 3
    assert {*truth["guilty"], *(truth["cure"] or ())} <= set(names)
    if case.low is not None:
        assert truth["low_guilty"]
        assert set(truth["low_guilty"]) <= {node.name for node in case.low.graph.node}


def test_the_cure_of_a_fault_is_proven(cases):
    cured = {kind: case for kind, case in cases.items() if case.truth["cure"] is not None}
    assert len(cured) >= len(KINDS) - 2
    for case in cured.values():
        low = rounded(case.float32, case.truth["dtype"], case.truth["cure"])
        reference = outputs_of(case.float32, case.sample)
        assert error_between(reference, outputs_of(low, case.sample)) <= case.truth["limit"]


def test_a_draw_repeats(cases):
    again = draw_case("residual_overflow", (36, 1), SMALL)
    assert again.truth == cases["residual_overflow"].truth
    assert again.float32.SerializeToString() == cases["residual_overflow"].float32.SerializeToString()


def test_each_kind_is_planted_at_least_twice():
    for seed in (36, 37):
        counts = collections.Counter(plant_faults._kinds(seed, 30, None))
        assert set(counts) == {*KINDS, training.TRAINING}
        assert min(counts.values()) == 2


def test_no_model_has_two_faults_of_a_kind_or_most_of_all():
    planted = [("low_sum", "cnn"), *[(f"kind {index}", "mlp") for index in range(4)]]
    assert plant_faults._used("low_sum", planted) == {"cnn", "mlp"}
    assert plant_faults._used("kind", planted) == {"mlp"}


def test_models_without_a_corpus():
    names = [[source.name for source in group] for group in sources(None)]
    assert names == [["mlp", "cnn", "transformer"], ["bert_1layer", "paddle_lenet", "rocm_convnet"]]
    assert not any(source.fault for group in sources(None) for source in group)


@pytest.fixture
def square():
    sample = {"x": np.linspace(0.1, 1, 16, dtype=np.float32).reshape(2, 8)}
    return onnx.parser.parse_model(SQUARE), sample


def test_the_smallest_cure(square):
    model, sample = square
    reference = outputs_of(model, sample)
    switched = Switched(model, "float16", sample, reference)
    assert switched.nodes == float_nodes(model) == ["a", "b", "c", "d", "e"]
    assert switched.error(()) > 0.1
    keeps, error = smallest_cure(switched, 0.01, ["a"])
    assert keeps == ["b", "c"]
    low = rounded(model, "float16", keeps)
    assert error == pytest.approx(error_between(reference, outputs_of(low, sample)))
    assert smallest_cure(switched, -1.0, []) is None


def test_the_first_node_that_fails(square):
    model, sample = square
    low = rounded(model, "float16")
    assert first_alarm(model, low, sample, ["a", "b", "c"]) == "b"
    assert first_alarm(model, low, sample, ["a"]) is None
    assert first_alarm(model, rounded(model, "bfloat16"), sample, "abcde") is None


CONVERTER = "onnxconverter-common, which makes some low models, is not installed: the extra [bench]"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_makes_everything_low(tool):
    if tool == "onnxconverter_common":
        pytest.importorskip("onnxconverter_common", reason=CONVERTER)
    source = SMALL[0][2]
    for dtype in TOOLS[tool][1]:
        low = TOOLS[tool][0](source.model, dtype)
        error = error_between(source.reference, low_outputs(low, source.sample))
        assert 0 < error < LIMITS[dtype]
        planting._check_file(low)


def test_names_that_are_counters(square):
    model, sample = square
    other, names = renamed(model)
    assert names == {"a": "n0", "b": "n1", "c": "n2", "d": "n3", "e": "n4"}
    assert other.graph.node[1].input == ["v3", "v3"]
    assert error_between(outputs_of(model, sample), outputs_of(other, sample)) == 0


def test_new_nodes_stand_behind_a_value_and_its_readers_read_them(square):
    model, sample = square
    edit = Editor(model, "q")
    edit.replace(edit.node("Mul", "q", 1.0))
    assert [node.op_type for node in model.graph.node] == ["Mul", "Mul", "Mul", "Mul", "Tanh", "Add"]
    assert model.graph.node[3].input[0] == model.graph.node[2].output[0]
    assert error_between(outputs_of(onnx.parser.parse_model(SQUARE), sample), outputs_of(model, sample)) == 0


def test_nodes_get_names():
    model = onnx.parser.parse_model(SQUARE.replace("[a]", "").replace("[b]", "[c]"))
    name_nodes(model)
    assert [node.name for node in model.graph.node] == ["Mul_n0", "c", "Mul_n2", "d", "e"]


def test_a_scale_that_is_too_large_trains_nothing():
    truth, feed = training.training_truth(36, 0)
    assert len(set(truth["losses"])) == 1
    assert truth["losses_without"][-1] < truth["losses_without"][0]
    assert set(feed) == {"x", "label"}
    assert truth["network"] in training.NETWORKS


# ---- the score ----
@pytest.fixture(scope="module")
def folder(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    for kind in ("low_sum", "wrong_cast"):
        write(cases[kind], folder / f"00_{kind}")
    truth, feed = {"kind": "training_scale"}, {"x": np.zeros(1)}
    write(planting.Case(None, None, feed, truth, {}), folder / "01_training")
    return folder


def diagnosis(node, nodes, error=0.001):
    guilty = None if node is None else types.SimpleNamespace(node=node)
    cure = None if nodes is None else types.SimpleNamespace(nodes=nodes, error=error)
    return types.SimpleNamespace(guilty=guilty, cure=cure, passes=2)


def test_what_a_case_holds(folder, cases):
    assert [path.name for path in score_debug.folders(folder)] == ["00_low_sum", "00_wrong_cast"]
    assert [path.name for path in score_debug.folders(folder, "cast")] == ["00_wrong_cast"]
    assert (folder / "00_wrong_cast" / "low.onnx").exists()
    truth = json.loads((folder / "00_low_sum" / "truth.json").read_text())
    assert truth == cases["low_sum"].truth


def test_a_right_diagnosis(folder):
    asked = {}

    def diagnose(float32, low, **options):
        truth = json.loads((folder / float32.split("/")[-2] / "truth.json").read_text())
        asked[truth["kind"]] = (low, options)
        return diagnosis(truth["guilty"][0], tuple(truth["cure"]))

    scores = [score_debug.score(case, diagnose) for case in score_debug.folders(folder)]
    assert all(row.is_right and row.is_smallest for row in scores)
    assert asked["wrong_cast"][0] is not None
    assert {"dtype", "level", "tolerance", "inputs"} == set(asked["wrong_cast"][1])
    summary = list(score_debug.summary_of(scores))
    assert summary[:4] == [
        "\nguilty node named: 2 of 2",
        "cured: 2 of 2",
        "smallest cure: 2 of 2 for which it is known",
        "most passes: 2",
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (diagnosis("Other", ("a", "b", "c", "d", "e")), "WRONG  Other (expected"),
        (diagnosis(None, None), "WRONG  None (expected"),
        (diagnosis("Other", ("a",), error=0.5), "cure 1, no cure of"),
    ],
)
def test_a_wrong_diagnosis(folder, answer, words):
    row = score_debug.score(folder / "00_low_sum", lambda *_, **__: answer)
    assert not row.is_right
    assert not row.is_smallest
    assert words in score_debug.line_of(row)


@pytest.mark.slow
def test_cases_over_a_corpus(corpus, tmp_path, monkeypatch):
    pytest.importorskip("onnxconverter_common", reason=CONVERTER)
    monkeypatch.setattr(
        "sys.argv", ["plant_faults.py", "--count", "13", "--corpus", str(corpus), str(tmp_path / "out")]
    )
    assert plant_faults.main() == 0
    assert len(list((tmp_path / "out").glob("*/truth.json"))) == 13
