"""Two models side by side."""

import dataclasses
import io
import json

import onnx
import pytest
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.errors import InputError
from amp_transpiler.report.as_json import dump, plain
from amp_transpiler.report.difference import difference_page, difference_text, facts_table
from amp_transpiler.verification.difference import compare_models
from tests.support import array, parse

NET = """(float[2,4] x) => (float[2,4] y, float[2,4] z)
    { a = MatMul(x, w) b = Exp(a) y = MatMul(b, w) z = Neg(a) }"""


def names(model):
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    onnx.save(names(parse(NET, w=array(4, 4))), folder / "a.onnx")
    amp.transpile(folder / "a.onnx", folder / "o1.onnx", level="O1", verify=False)
    amp.transpile(folder / "a.onnx", folder / "o2.onnx", level="O2", keep_io_types=False, verify=False)
    return folder


def text_of(difference, width=100):
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False).print(difference_text(difference))
    return file.getvalue()


@pytest.fixture(scope="module")
def found(files):
    return compare_models(files / "a.onnx", files / "o1.onnx")


def test_numbers_of_both_models(found):
    first, second = found.first, found.second
    assert (first.nodes, first.casts, dict(first.precisions)) == (4, 0, {"float32": 4})
    assert second.precisions["float16"] == 3
    assert second.precisions["float32"] == 1
    assert second.casts == second.precisions["cast"] == second.nodes - 4 > 0
    assert (first.weight_bytes, second.weight_bytes) == (64, 32)
    assert second.file_bytes > 0
    assert first.milliseconds > 0
    assert second.launches == first.launches + second.casts
    assert found.titles == ("a.onnx", "o1.onnx")


def test_nodes_in_two_precisions_are_named_and_others_are_not(found):
    assert {(node.name, node.first, node.second) for node in found.nodes} == {
        ("MatMul_0", "float32", "float16"),
        ("MatMul_2", "float32", "float16"),
        ("Neg_3", "float32", "float16"),
    }
    assert (found.only_first, found.only_second) == ((), ())


def test_outputs_are_those_of_the_second_against_the_first(found):
    assert set(found.outputs) == {"y", "z"}
    assert 0 < found.outputs["y"].relative < 0.01
    assert found.compared == "the second model against the first, on one made-up sample"


def test_a_model_has_no_difference_from_itself(files):
    comparison = compare_models(files / "o1.onnx", files / "o1.onnx")
    assert (comparison.nodes, comparison.only_first, comparison.only_second) == ((), (), ())
    assert {output.relative for output in comparison.outputs.values()} == {0.0}, "both are emulated"
    assert comparison.titles == ("first", "second")


def test_low_inputs_and_outputs_are_compared_with_float32_ones(files):
    for pair in (("a.onnx", "o2.onnx"), ("o2.onnx", "a.onnx")):
        comparison = compare_models(*(files / name for name in pair))
        assert set(comparison.outputs) == {"y", "z"}, comparison.compared
        assert 0 < comparison.outputs["y"].relative < 0.01, pair


def test_given_samples_and_sizes_are_used(files):
    inputs = [{"x": array(2, 4, seed=seed)} for seed in range(3)]
    comparison = compare_models(files / "a.onnx", files / "o1.onnx", inputs=inputs, device="T4")
    assert comparison.compared.endswith("on 3 given samples")
    assert comparison.outputs["y"].samples == 3
    assert comparison.device == "T4"


def test_times_are_those_of_the_device_and_of_the_given_sizes():
    model = amp.load(parse("(float[batch,1024] x) => (float[batch,1024] y) { y = Exp(x) }"))
    other = amp.load(parse("(float[3,1024] x) => (float[3,1024] y) { y = Exp(x) }"))

    def times(**options):
        comparison = compare_models(model, other, run=False, **options)
        assert comparison.compared == "not run"
        return comparison.first.milliseconds, comparison.second.milliseconds

    small, large = times(dims={"batch": 3}), times(dims={"batch": 100_000})
    assert small[0] == small[1] == large[1], "the other model has no such dimension"
    assert large[0] > 10 * small[0]
    assert times(dims={"batch": 100_000}, device="T4")[0] > 5 * large[0]
    with pytest.raises(InputError, match=r"neither model has an open dimension 'n'; .*: batch"):
        times(dims={"n": 3})


ODD = {
    "another input": (
        "(float[2,4] other) => (float[2,4] y) { y = Exp(other) }",
        "not compared: the second model does not take the inputs of the first",
    ),
    "no output in common": (
        "(float[2,4] x) => (float[2,4] other) { other = Exp(x) }",
        "not compared: the models have no output of the same name",
    ),
    "an output less": (
        "(float[2,4] x) => (float[2,4] y) { y = Exp(x) }",
        "on one made-up sample; without z, which the second model lacks",
    ),
    "another shape": ("(float[2,4] x) => (float[4] y) { y = ReduceMax <keepdims = 0> (x, axes) }", "without z"),
    "does not run": ("(float[2,4] x) => (float[2,4] y) { y = my.domain.Op (x) }", "not compared: the emulated program"),
}


@pytest.mark.parametrize("case", ODD)
def test_models_that_hardly_fit_are_described_all_the_same(case, files):
    text, expected = ODD[case]
    weights = {"axes": array(1).astype("int64") * 0} if case == "another shape" else {}
    options = {"imports": ', "my.domain" : 1'} if case == "does not run" else {}
    comparison = compare_models(files / "a.onnx", amp.load(parse(text, **options, **weights)))
    assert expected in comparison.compared
    assert comparison.second.nodes == 1
    assert comparison.only_first


def test_wrong_inputs_and_devices_are_errors(files):
    with pytest.raises(InputError, match="x"):
        compare_models(files / "a.onnx", files / "o1.onnx", inputs={"q": array(2, 4)})
    with pytest.raises(InputError, match="unknown device"):
        compare_models(files / "a.onnx", files / "o1.onnx", device="abacus")


def test_bodies_are_compared_too():
    text = """(float[2,4] x, bool c) => (float[2,4] y)
    { y = If (c) <then_branch = t () => (float[2,4] p) { p = MatMul(x, w) },
                  else_branch = e () => (float[2,4] q) { q = Abs(x) }> }"""
    model = parse(text, w=array(4, 4))
    for branch in model.graph.node[0].attribute:
        branch.g.node[0].name = f"{branch.g.node[0].op_type}_0"
    low = amp.transpile(model, level="O1", verify=False).program
    comparison = compare_models(model, low, run=False)
    assert [(node.name, node.op, node.second) for node in comparison.nodes] == [("MatMul_0", "MatMul", "float16")]
    assert comparison.nodes[0].scope.endswith("then_branch")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_fits(found, width):
    text = text_of(found, width)
    assert max(map(len, text.splitlines())) <= width
    for expected in ("weights", "64 B", "32 B (-50%)", "3 nodes in two precisions", "casts between floats", "MatMul_0"):
        assert expected in text


def test_a_long_list_is_cut_in_the_text_alone(found):
    many = dataclasses.replace(found, nodes=found.nodes * 10, only_second=tuple(f"n{i}" for i in range(9)))
    text = text_of(many)
    assert "30 nodes in two precisions" in text
    assert "and 18 more" in text
    assert "9 only in o1.onnx: n0, n1, n2, n3, n4, n5 and 3 more" in text
    page = difference_page(many)
    assert page.count("MatMul_0") == 10
    assert "n8" in page


def test_json_has_every_figure(found):
    record = json.loads(dump(plain(found)))
    assert record["first"]["nodes"] == 4
    assert record["second"]["casts"] == found.second.casts
    assert record["outputs"]["y"]["relative"] == found.outputs["y"].relative
    assert len(record["nodes"]) == 3


def test_names_are_text_on_the_page(found):
    node = dataclasses.replace(found.nodes[0], name="<script>alert('x')</script>\x1b")
    page = difference_page(dataclasses.replace(found, nodes=(node,)))
    assert page.count("<script>") == 1
    assert "\x1b" not in page


def test_models_of_the_same_name_are_told_apart_by_their_folders(found):
    first, other = (dataclasses.replace(found.first, source=f"/m/{name}/model.onnx") for name in ("x", "y"))
    assert [head for head, _ in facts_table(dataclasses.replace(found, first=first, second=other)).heads] == [
        "",
        "x/model.onnx",
        "y/model.onnx",
    ]
