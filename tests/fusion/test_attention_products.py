"""Attention in pieces reads rows as they lie: the same numbers from fewer kernels, in every exporter's form."""

import numpy as np
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion import attention_output, operand_products
from amp_transpiler.fusion.attention_prices import is_cheaper_in_columns, is_cheaper_joined
from amp_transpiler.fusion.fuse import Fuse
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.manager import run_pass
from tests.fusion.attention_forms import (
    ALLOWED,
    FORMS,
    MIX,
    NEWER,
    OTHERS,
    SCORES,
    SEPARATE,
    TURNED,
    WEIGHTS,
    counted,
    distance,
    feeds,
    model,
)
from tests.support import run

CHOICE = "contrib,-Attention"


def written(proto):
    program = plain_copy(amp.load(proto))
    result = run_pass(Fuse(["FusedMatMul"]), program.model)
    return program, result


def of_size(proto, batch, length):
    """Return a model whose sizes are known."""
    for info in (*proto.graph.input, *proto.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in ("b", "l"):
                dim.dim_value = batch if dim.dim_param == "b" else length
    return proto


# What has no constants before the heads, or is one operator already, has nothing to save.
SAME = {"projections that are no constants", *(name for name in NEWER if name.startswith("one operator"))}


@pytest.mark.parametrize("case", ["padding", "a text of padding alone", "other sizes"])
@pytest.mark.parametrize("form", [*FORMS, *NEWER])
def test_attention_computes_the_same(form, case):
    body, _ = {**FORMS, **NEWER}[form]
    proto = model(body, opset=23 if form in NEWER else 18)
    before = counted(plain_copy(amp.load(proto)))
    program, result = written(proto)
    assert result.count == (form not in SAME)
    if form not in SAME:
        after = counted(program)
        assert after["FusedMatMul"] == 2
        assert after["Transpose"] < before["Transpose"]
    inputs = feeds(3, 4) if case == "other sizes" else feeds()
    if case == "a text of padding alone":
        inputs["m"][1] = 0
    expected, computed = run(proto, inputs)["y"], run(program, inputs)["y"]
    assert np.isfinite(expected).all()
    assert distance(expected, computed) < 2e-6


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_known_sizes_change_no_number(form, batch):
    proto = of_size(model(FORMS[form][0]), batch, 16)
    program, _ = written(proto)
    inputs = feeds(batch, 16)
    assert distance(run(proto, inputs)["y"], run(program, inputs)["y"]) < 2e-6


PLAIN = f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} y0 = MatMul(o, wo) y = Add(y0, bo)"
CROSS = f"e = Neg(x) {PLAIN}".replace("MatMul(x, wk)", "MatMul(e, wk)").replace("MatMul(x, wv)", "MatMul(e, wv)")
# name: (body, batch, length, Transposes, additions of biases) of what is left
LEFT = {
    "one sample": (PLAIN, 1, 16, 0, 2),
    "some samples": (PLAIN, 4, 16, 1, 2),
    "open sizes": (PLAIN, 0, 0, 2, 2),
    "no bias behind the result": (f"{PLAIN.replace(' y = Add(y0, bo)', '')} y = Neg(y0)", 1, 16, 0, 1),
    "another value that keys are made of": (CROSS, 4, 16, 2, 2),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    body, batch, length, transposes, biases = LEFT[name]
    proto = model(body) if not batch else of_size(model(body), batch, length)
    program, _ = written(proto)
    after = counted(program)
    assert after["Transpose"] == transposes
    adds = [node for node in program.model.graph if node.op_type == "Add"]
    assert sum(any(constant_array(value) is not None for value in node.inputs) for node in adds) == biases


def test_the_bias_of_values_joins_the_one_behind_the_result():
    program, _ = written(model(PLAIN))
    arrays = [constant_array(value) for node in program.model.graph for value in node.inputs]
    sums = [array for array in arrays if array is not None and array.shape == (8,)]
    expected = WEIGHTS["bo"] + WEIGHTS["bv"].astype(np.float64) @ WEIGHTS["wo"]
    assert any(np.allclose(array, expected, atol=1e-7) for array in sums)
    assert any(np.array_equal(array, WEIGHTS["bq"]) for array in sums)
    assert not any(np.array_equal(array, WEIGHTS[name]) for array in sums for name in ("bk", "bv"))


READ_ELSEWHERE = {
    "keys": ("z = Neg(ka)", {"bk"}),
    "values": ("z = Neg(va)", {"bv"}),
    "products of values": ("z = Neg(vm)", {"bv"}),
}


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_others_read_keeps_its_bias(name):
    reader, biases = READ_ELSEWHERE[name]
    header = "(float[b,l,8] x, float[b,l] m) => (float[b,l,8] y, float[b,l,8] z)"
    proto = model(f"{PLAIN} {reader}", header=header)
    program, result = written(proto)
    assert result.count == 1
    read = {value.name for node in program.model.graph for value in node.inputs if value is not None}
    assert biases <= read
    expected, computed = run(proto, feeds()), run(program, feeds())
    assert all(distance(expected[key], computed[key]) < 2e-6 for key in ("y", "z"))


def test_what_is_asked_for_its_shape_is_not_computed_twice():
    """Scores stay where somebody asks for their shape; of keys only the product, which keeps its bias."""
    for value, count, has_bias in (("s0", 0, True), ("k4", 1, True), ("x", 1, False)):
        body = f"{PLAIN} shape = Shape({value}) z = Cast<to=1>(shape)"
        header = "(float[b,l,8] x, float[b,l] m) => (float[b,l,8] y, float[r] z)"
        program, result = written(model(body, header=header))
        assert result.count == count
        products = counted(program)["MatMul"] + counted(program)["FusedMatMul"]
        assert products == 6, value
        read = {each.name for node in program.model.graph for each in node.inputs if each is not None}
        assert ("bk" in read) is has_bias


def test_layers_share_masks_and_turned_rows():
    second = PLAIN.split(ALLOWED)[1].replace("y0", "z0").replace("y = Add", "z = Add")
    renamed = [word.rstrip(",)") for word in second.split() if word.isidentifier()]
    for word in sorted(set(renamed) - {"x", "z", "z0"}, key=len, reverse=True):
        second = second.replace(f" {word} =", f" {word}_ =").replace(f"({word},", f"({word}_,")
        second = second.replace(f" {word})", f" {word}_)").replace(f"({word})", f"({word}_)")
    header = "(float[b,l,8] x, float[b,l] m) => (float[b,l,8] y, float[b,l,8] z)"
    program, result = written(model(f"{PLAIN} {second}", header=header))
    after = counted(program)
    assert result.count == 2
    assert after["Transpose"] == 3  # of x once, and of both results
    assert after["Where"] == 1


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_not_attention_stays(form):
    body, constants = OTHERS[form]
    assert written(model(body, **constants))[1].modified is False


@pytest.mark.parametrize("joins", [True, False])
def test_whether_products_are_joined_is_asked_of_the_price_list(joins, monkeypatch):
    monkeypatch.setattr(operand_products, "is_cheaper_joined", lambda *_: joins)
    for batch in (1, 4):
        proto = of_size(model(PLAIN), batch, 16)
        program, _ = written(proto)
        assert (counted(program)["MatMul"], counted(program)["Split"]) == ((1, 1) if joins else (3, 0))
        assert distance(run(proto, feeds(batch, 16))["y"], run(program, feeds(batch, 16))["y"]) < 2e-6


def test_prices():
    assert is_cheaper_joined(128, 768, 768, (True, False, False))
    assert not is_cheaper_joined(1024, 768, 768, (True, False, False))
    assert is_cheaper_in_columns(8, 12, 128, 128, 64, 768)
    assert not is_cheaper_in_columns(1, 12, 197, 197, 64, 768)  # columns that suit no tensor core


def test_whether_columns_are_read_is_asked_of_the_price_list(monkeypatch):
    monkeypatch.setattr(attention_output, "is_cheaper_in_columns", lambda *_: False)
    program, _ = written(of_size(model(PLAIN), 1, 16))
    assert counted(program)["Transpose"] == 1


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["eager", "scaled dot product", "the mask chooses scores", "slices of one product"])
def test_low_numbers_stay_as_near(form, low):
    proto = of_size(model(FORMS[form][0]), 2, 16)
    settings = {"level": "O2", "dtype": low, "inputs": feeds(2, 16), "cache": False, "target": "cuda"}
    errors = []
    for choice in (CHOICE, "none"):
        report = amp.transpile(proto, fuse=choice, **settings)
        assert report.fused.get("com.microsoft::FusedMatMul", 0) == (2 if choice == CHOICE else 0)
        errors.append(max(row.relative for row in report.outputs.values()))
    limit = {"float16": 2e-3, "bfloat16": 2e-2}[low]
    assert errors[0] < max(1.2 * errors[1], limit)


def test_it_is_the_default_and_can_be_left_out():
    proto = of_size(model(FORMS["eager"][0]), 2, 16)
    settings = {"level": "O2", "verify": False, "cache": False}
    assert amp.transpile(proto, **settings).fused == {"com.microsoft::FusedMatMul": 2}
    assert amp.transpile(proto, fuse=f"{CHOICE},-FusedMatMul", **settings).fused == {}
    for target in ("any", "cpu", "tensorrt"):
        assert amp.transpile(proto, target=target, **settings).fused == {}


def test_unread_nodes_go():
    program, _ = written(model(PLAIN))
    assert not RemoveUnusedNodesPass()(program.model).modified
