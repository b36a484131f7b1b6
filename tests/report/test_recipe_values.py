"""Recipes with wrong values end in one clear error, never in a traceback."""

from __future__ import annotations

import os

import onnx
import onnx.parser
import pytest
import tomli_w

from amp_transpiler.cli.command import main
from amp_transpiler.errors import InputError
from amp_transpiler.options.table import RECORDED
from amp_transpiler.report.recipe import Recipe

# Option -> values of forms that it does not have.
WORDS = [5, True, [], {}, "a" * 10_000]
FLAGS = [5, "x", [], {}, 1.5]
NAMES = [5, True, [1], [["x"]], {"x": 1}]
LIMITS = [True, [1], {"x": [1]}, "a" * 10_000, {"x": True}]
WRONG = {
    **dict.fromkeys(("level", "dtype", "target", "policy", "preset", "ort", "prefer", "fuse", "float64"), WORDS),
    **dict.fromkeys(("use_promote", "master_weights", "loss_scaling", "optimize", "pad_weights"), FLAGS),
    **dict.fromkeys(("guard", "disable_amp", "include", "mixed_ops"), NAMES),
    **dict.fromkeys(("tolerance", "mismatch"), LIMITS),
    "keep_io_types": [5, 1.5, [1], {"x": 1}, float("nan")],
    "amp_lists": [5, "x", {"white": 3}, {"white": "MatMul"}, {"black": [1, 2]}, {"foo": ["x"]}],
    "rescale": [5, True, [], {"x": "y"}, {"x": 1.5}, {"x": True}],
    "split_sums": [5, True, [], {"x": "y"}, {"x": 1.5}, {"x": True}],
    "opset": [1.5, True, "x", [], float("inf")],
    "state": [5, "x", ["x"], {"x": 1}, True],
    "float32_inputs": [5, "x:1", ["x:1"], {"x": 1}, {"x": [1]}, True],
    "custom_op_types": [5, "x:fp16", ["x:fp16"], {"x": 1}, {"x": ["fp16"]}, True],
}


def read(tmp_path, text):
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    return Recipe.read(tmp_path / "r.toml", RECORDED)


def test_every_option_is_tried():
    assert set(WRONG) == set(RECORDED)


@pytest.mark.parametrize("option", WRONG)
def test_a_value_of_another_form_is_refused(tmp_path, option):
    for value in WRONG[option]:
        with pytest.raises(InputError, match=rf"option '{option}' is .*, expected") as caught:
            read(tmp_path, tomli_w.dumps({"format": 1, "options": {option: value}}))
        assert len(str(caught.value)) < 400 + len(str(tmp_path))


BROKEN = {
    "nested lists": "format = 1\n[options]\nguard = " + "[" * 5000 + "]" * 5000,
    "nested keys": "format = 1\n" + "a." * 20_000 + "b = 1",
    "a number of thousands of digits": "format = 1\n[options]\nopset = " + "9" * 5000,
    "a date": "format = 1\n[options]\ntolerance = 1979-05-27",
    "a null": "\0",
    "a format that is no number": "format = true",
    "a format of another kind": "format = 1.0",
    "options that are no table": "format = 1\noptions = 5",
    "control characters": 'format = 1\n[options]\n"\\u001b[31m" = 5',
    "a node that is none": 'format = 1\n[nodes]\n"\\u001b[2J" = 3',
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_in_one_line(tmp_path, case):
    with pytest.raises(InputError) as caught:
        read(tmp_path, BROKEN[case])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "r.toml")
    with pytest.raises(InputError, match="is no regular file"):
        Recipe.read(tmp_path / "r.toml", RECORDED)


NAMES_OF_NODES = ["\x1b[31mred\x07", "a\nb", "a\rb", "\u202eb", "\x9b2J", "\x00z", "\x7f", "tab\t"]


@pytest.mark.parametrize("name", NAMES_OF_NODES, ids=ascii)
def test_control_characters_of_a_recipe_are_shown_as_escapes(name, tmp_path, capfd):
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2, 64] x) => (float[2, 64] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    node = {"op": f"Relu{name}", "precision": "low", "reason": f"as{name}"}
    record = {"format": 1, "made_from": {"model": name, "sha256": "0"}, "nodes": {name: node}, "options": {}}
    (tmp_path / "r.toml").write_text(tomli_w.dumps(record), encoding="utf-8")
    place = str(tmp_path / "o.onnx")
    status = main([str(tmp_path / "m.onnx"), "-o", place, "--recipe", str(tmp_path / "r.toml"), "--explain"])
    out, err = capfd.readouterr()
    assert status == 0
    assert "only in the recipe" in out + err
    assert [c for c in out + err if not c.isprintable() and c != "\n"] == []
