"""Products in parts for targets that add up in float16: which are chosen, and what reports and recipes say."""

import dataclasses

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.cost.split_sums import ProductSizes, cost_in_parts, cost_whole, is_cheaper_in_parts
from amp_transpiler.errors import OptionError
from amp_transpiler.report.as_json import report_as_dict
from tests.support import array, parse
from tests.targets.webgpu_cases import accumulator_case, parted_convolution, wide_stream


@pytest.fixture(scope="module")
def case():
    return accumulator_case()


@pytest.fixture(scope="module")
def in_parts(case):
    model, feeds = case
    return amp.transpile(model, target="webgpu", inputs=feeds, cache=False)


def test_a_product_that_overflows_inside_is_computed_in_parts(in_parts):
    assert in_parts.verdict_word == "verified"
    assert in_parts.low_nodes == 1
    assert in_parts.in_parts == {"MatMul_y": 16}
    assert in_parts.weight_bytes[1] < 0.51 * in_parts.weight_bytes[0]


def test_the_report_says_so(in_parts):
    (row,) = in_parts.decisions
    assert row.reason == "computed in 16 parts, added up in float32: whole, its sum leaves float16 inside"
    assert row.op == "MatMul"
    (note,) = [note for note in in_parts.notes if "--split-sums no" in note]
    assert "'MatMul_y' in 16" in note
    assert report_as_dict(in_parts)["in_parts"] == {"MatMul_y": 16}


def test_without_it_the_product_is_float32(case):
    model, feeds = case
    report = amp.transpile(model, target="webgpu", inputs=feeds, split_sums="no", cache=False)
    assert (report.low_nodes, report.in_parts) == (0, {})


def test_a_recipe_replays_it(case, in_parts, tmp_path):
    model, feeds = case
    in_parts.save_recipe(tmp_path / "r.toml")
    again = amp.transpile(model, target="webgpu", inputs=feeds, recipe=tmp_path / "r.toml", cache=False)
    assert again.in_parts == in_parts.in_parts
    assert again.low_nodes == 1
    assert again.outputs["y"].relative == in_parts.outputs["y"].relative


def test_the_answer_to_an_equal_question_is_the_same(case, in_parts):
    model, feeds = case
    for _ in range(2):
        report = amp.transpile(model, target="webgpu", inputs=feeds)
        assert report.in_parts == in_parts.in_parts


def test_the_callers_own_numbers_of_parts_are_taken(case):
    model, feeds = case
    report = amp.transpile(model, target="webgpu", inputs=feeds, split_sums={"MatMul_y": 8}, cache=False)
    assert report.in_parts == {"MatMul_y": 8}
    assert report.decisions[0].reason == "computed in 8 parts, added up in float32: as asked for"


def test_a_convolution_in_parts():
    model, feeds = parted_convolution()
    report = amp.transpile(model, target="webgpu", inputs=feeds, cache=False)
    assert report.verdict_word == "verified"
    assert set(report.in_parts) == {"Conv_y"}


def test_where_parts_cost_more_the_product_is_float32():
    model, feeds = wide_stream()
    report = amp.transpile(model, target="webgpu", inputs=feeds, cache=False)
    assert report.in_parts == {}
    assert report.verdict_word == "verified"


def test_other_targets_need_no_parts(case):
    model, feeds = case
    report = amp.transpile(model, target="cuda", inputs=feeds, cache=False)
    assert report.in_parts == {}


# ---- the rule ----

WEIGHT = ProductSizes(data=32768, weight=524288, result=256, terms=8192, batched=True)  # of `accumulator_case`


@pytest.mark.parametrize(
    ("changes", "parts", "cheaper"),
    [
        ({}, 2, True),  # the weight is most of what is read
        ({}, 16, True),
        ({"data": 64, "weight": 4096, "result": 64, "terms": 64}, 2, False),  # the kernels are most of the time
        ({"data": 1 << 20, "weight": 1 << 14, "result": 1 << 20, "terms": 128}, 2, False),  # results are moved often
        ({"data": 1 << 24, "weight": 1 << 24, "result": 1 << 24, "terms": 4096}, 4, True),  # products are
        ({"batched": False}, 2, True),
        ({"batched": False}, 16, False),
    ],
)
def test_the_rule_of_bytes_products_and_kernels(changes, parts, cheaper):
    assert is_cheaper_in_parts(dataclasses.replace(WEIGHT, **changes), parts) is cheaper


def test_the_rule_counts_what_the_page_says():
    """The figures of docs/howto/web.md."""
    assert cost_whole(WEIGHT) == 4 * (32768 + 524288 + 256) + 256 * 8192 / 8 + 65536
    moved = 6 * 32768 + 4 * 32768 + 2 * (32768 + 524288 + 16 * 256) + 6 * 16 * 256 + 4 * (16 * 256 + 256)
    assert cost_in_parts(WEIGHT, 16) == moved + 256 * 8192 / 16 + 5 * 65536


@pytest.mark.parametrize("choice", ["yes", 5, ["x"], {"x": 3}, {"x": True}, {"x": "2"}])
def test_no_other_choice_is_taken(choice):
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4))
    with pytest.raises(OptionError, match="split_sums"):
        amp.transpile(model, target="webgpu", split_sums=choice)


def test_it_has_a_meaning_at_level_auto():
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=np.eye(4, dtype=np.float32))
    with pytest.raises(OptionError, match="split_sums has a meaning at level auto only"):
        amp.transpile(model, target="webgpu", split_sums="no", level="O2")
